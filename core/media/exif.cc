#include "media/exif.h"

#include <cstdint>
#include <string_view>

namespace stoker {
namespace {

using std::string_view_literals::operator""sv;

constexpr std::uint32_t kOrientationTag = 0x0112;
constexpr std::uint32_t kByte = 1;
constexpr std::uint32_t kShort = 3;
constexpr std::uint32_t kLong = 4;

/// Unsigned numbers in the block's byte order; what lies outside of it reads as 0.
class TiffView {
 public:
  TiffView(std::string_view bytes, bool is_little) : bytes_(bytes), is_little_(is_little) {}

  std::uint32_t number(std::uint64_t at, int n_bytes) const {
    if (at + static_cast<std::uint64_t>(n_bytes) > bytes_.size()) return 0;
    std::uint32_t value = 0;
    for (int i = 0; i < n_bytes; ++i) {
      const int from = is_little_ ? n_bytes - 1 - i : i;
      value = value << 8 |
              static_cast<unsigned char>(bytes_[static_cast<std::size_t>(at) + static_cast<std::size_t>(from)]);
    }
    return value;
  }

 private:
  std::string_view bytes_;
  bool is_little_;
};

}  // namespace

int exif_orientation(std::span<const std::byte> block) {
  std::string_view bytes(reinterpret_cast<const char*>(block.data()), block.size());
  while (bytes.starts_with("Exif\0\0"sv)) bytes.remove_prefix(6);
  if (!bytes.starts_with("II*\0"sv) && !bytes.starts_with("MM\0*"sv)) return 0;
  const TiffView tiff(bytes, bytes.front() == 'I');
  const std::uint64_t directory = tiff.number(4, 4);
  const std::uint32_t n_entries = tiff.number(directory, 2);
  for (std::uint32_t i = 0; i < n_entries; ++i) {
    const std::uint64_t entry = directory + 2 + std::uint64_t{12} * i;
    if (entry + 12 > bytes.size()) return 0;
    if (tiff.number(entry, 2) != kOrientationTag) continue;
    const std::uint32_t type = tiff.number(entry + 2, 2);
    if ((type != kByte && type != kShort && type != kLong) || tiff.number(entry + 4, 4) != 1) return 0;
    const std::uint32_t value = tiff.number(entry + 8, type == kLong ? 4 : static_cast<int>(type == kShort ? 2 : 1));
    return value >= 1 && value <= 8 ? static_cast<int>(value) : 0;
  }
  return 0;
}

int xmp_orientation(std::span<const std::byte> packet) {
  const std::string_view text(reinterpret_cast<const char*>(packet.data()), packet.size());
  constexpr std::string_view kName = "tiff:Orientation";
  for (std::size_t at = text.find(kName); at != std::string_view::npos; at = text.find(kName, at + 1)) {
    std::string_view rest = text.substr(at + kName.size());
    if (rest.starts_with("=\"")) {
      rest.remove_prefix(2);
    } else if (rest.starts_with('>')) {
      rest.remove_prefix(1);
    } else {
      continue;
    }
    return !rest.empty() && rest.front() >= '1' && rest.front() <= '8' ? rest.front() - '0' : 0;
  }
  return 0;
}

}  // namespace stoker

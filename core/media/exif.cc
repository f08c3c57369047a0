#include "media/exif.h"

#include <array>
#include <cstdint>
#include <string_view>

namespace stoker {
namespace {

using std::string_view_literals::operator""sv;

constexpr std::string_view kHeader = "Exif\0\0"sv;

constexpr std::uint32_t kOrientationTag = 0x0112;
constexpr std::uint32_t kSignedByte = 6;

/// Bytes of one value by TIFF type; 0 where there is no such type.
int bytes_of_type(std::uint32_t type) {
  constexpr std::array<std::int8_t, 17> kBytes = {0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4, 0, 0, 8};
  return type < kBytes.size() ? kBytes[type] : 0;
}

/// Types whose values are whole numbers. BYTE and UNDEFINED are not: Pillow reads them as bytes.
bool is_number(std::uint32_t type) {
  return type == 3 || type == 4 || type == kSignedByte || type == 8 || type == 9 || type == 13;
}

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

std::optional<int> exif_orientation(std::span<const std::byte> block) {
  std::string_view bytes(reinterpret_cast<const char*>(block.data()), block.size());
  for (int i = 0; i < 2 && bytes.starts_with(kHeader); ++i) bytes.remove_prefix(kHeader.size());
  const bool is_little = bytes.starts_with("II*\0"sv) || bytes.starts_with("II\0*"sv);
  if (!is_little && !bytes.starts_with("MM\0*"sv) && !bytes.starts_with("MM*\0"sv)) return std::nullopt;
  const TiffView tiff(bytes, is_little);
  const std::uint64_t directory = tiff.number(4, 4);
  const std::uint32_t n_entries = tiff.number(directory, 2);
  for (std::uint32_t i = 0; i < n_entries; ++i) {
    const std::uint64_t entry = directory + 2 + std::uint64_t{12} * i;
    if (entry + 12 > bytes.size()) return 0;
    if (tiff.number(entry, 2) != kOrientationTag) continue;
    const std::uint32_t type = tiff.number(entry + 2, 2);
    const std::uint64_t n_bytes = std::uint64_t{tiff.number(entry + 4, 4)} * static_cast<unsigned>(bytes_of_type(type));
    const std::uint64_t at = n_bytes > 4 ? tiff.number(entry + 8, 4) : entry + 8;
    if (n_bytes == 0 || n_bytes > bytes.size() || at + n_bytes > bytes.size()) continue;  // as if it were not there
    const std::uint32_t value = is_number(type) ? tiff.number(at, bytes_of_type(type)) : 0;
    return value >= 1 && value <= 8 ? static_cast<int>(value) : 0;
  }
  return 0;
}

void Orientation::add_exif(std::span<const std::byte> block, ImageNotes& notes) {
  if (has_exif_) return;
  if (block.size() <= kHeader.size()) return notes.add(ImageNote::kExifUnreadable);
  set_exif(block, notes);
}

void Orientation::set_exif(std::span<const std::byte> block, ImageNotes& notes) {
  has_exif_ = true;
  exif_ = exif_orientation(block);
  const std::string_view bytes(reinterpret_cast<const char*>(block.data()), block.size());
  const bool is_doubled = bytes.starts_with(kHeader) && bytes.substr(kHeader.size()).starts_with(kHeader);
  if (!exif_ || is_doubled) notes.add(ImageNote::kExifUnreadable);
}

int Orientation::value(int otherwise) const {
  if (exif_.value_or(0) != 0) return *exif_;
  return xmp_ != 0 ? xmp_ : otherwise;
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

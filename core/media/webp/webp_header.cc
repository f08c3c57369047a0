#include "media/webp/webp_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "media/exif.h"
#include "media/limits.h"

namespace stoker {
namespace {

constexpr std::size_t kFirstChunk = 12;
constexpr std::size_t kHeaderBytes = 30;  // enough for every kind
constexpr std::uint64_t kMostTail = std::uint64_t{1} << 20;
constexpr unsigned kXmpFlag = 4;
constexpr unsigned kExifFlag = 8;
constexpr unsigned kAnimationFlag = 2;
constexpr unsigned kAlphaFlag = 16;
constexpr unsigned kIccFlag = 32;

constexpr std::uint32_t tag(char a, char b, char c, char d) {
  return static_cast<std::uint32_t>(static_cast<unsigned char>(a)) |
         static_cast<std::uint32_t>(static_cast<unsigned char>(b)) << 8 |
         static_cast<std::uint32_t>(static_cast<unsigned char>(c)) << 16 |
         static_cast<std::uint32_t>(static_cast<unsigned char>(d)) << 24;
}

std::uint32_t number_at(std::span<const std::byte> file, std::size_t at, std::size_t n_bytes) {
  std::uint32_t value = 0;
  for (std::size_t i = n_bytes; i > 0; --i) value = value << 8 | std::to_integer<std::uint32_t>(file[at + i - 1]);
  return value;
}

std::optional<RiffChunk> chunk_at(std::span<const std::byte> file, std::uint64_t at) {
  if (at + 8 > file.size()) return std::nullopt;
  return RiffChunk{number_at(file, at, 4), static_cast<std::size_t>(at) + 8, number_at(file, at + 4, 4)};
}

/// Takes what `piece` has of EXIF and XMP chunks from `at` on. @return where it ended.
std::uint64_t read_metadata(std::span<const std::byte> piece, std::uint64_t at, Orientation& orientation,
                            ImageNotes& notes) {
  while (const auto chunk = chunk_at(piece, at)) {
    if (std::uint64_t{chunk->begin} + chunk->n_bytes > piece.size()) break;
    const auto body = piece.subspan(chunk->begin, chunk->n_bytes);
    if (chunk->tag == tag('E', 'X', 'I', 'F')) orientation.add_exif(body, notes);
    if (chunk->tag == tag('X', 'M', 'P', ' ')) orientation.set_xmp(body);
    at = chunk->end();
  }
  return at;
}

struct Size {
  std::uint32_t width = 0;
  std::uint32_t height = 0;
  bool has_alpha = false;
  bool is_lossless = false;
};

Result<Size> read_size(std::span<const std::byte> file, const RiffChunk& chunk) {
  const std::size_t at = chunk.begin;
  if (chunk.tag == tag('V', 'P', '8', 'X')) {
    return Size{number_at(file, at + 4, 3) + 1, number_at(file, at + 7, 3) + 1,
                (number_at(file, at, 1) & kAlphaFlag) != 0, false};
  }
  if (chunk.tag == tag('V', 'P', '8', 'L') && number_at(file, at, 1) == 0x2F) {
    const std::uint32_t bits = number_at(file, at + 1, 4);
    return Size{(bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1, (bits >> 28 & 1) != 0, true};
  }
  if (chunk.tag == tag('V', 'P', '8', ' ') && number_at(file, at + 3, 3) == 0x2A019D) {
    return Size{number_at(file, at + 6, 2) & 0x3FFF, number_at(file, at + 8, 2) & 0x3FFF, false, false};
  }
  return Status(Reason::kImgCorrupt, "WebP without a picture header");
}

}  // namespace

Result<Probe> probe_webp(std::span<const std::byte> prefix, std::uint64_t total_bytes, const ImageLimits& limits) {
  if (prefix.size() < kHeaderBytes) return need_more(prefix.size(), kHeaderBytes, total_bytes);
  const std::uint64_t riff_end = std::uint64_t{8} + number_at(prefix, 4, 4);
  const auto first = chunk_at(prefix, kFirstChunk);
  STOKER_TRY(const Size size, read_size(prefix, *first));
  if (size.width == 0 || size.height == 0) return Status(Reason::kImgCorrupt, "WebP without a size");
  STOKER_CHECKED(check_pixels(size.height, size.width, limits));
  Probe probe;
  ImageInfo info;
  info.format = ImageFormat::kWebp;
  info.height_px = static_cast<int>(size.height);
  info.width_px = static_cast<int>(size.width);
  // The codec gives whole pictures: RGBA here, and of its own the same again for lossless pictures and alpha planes.
  const std::size_t n_pixels = std::size_t{size.height} * size.width;
  info.scratch_bytes = n_pixels * 4 * (size.is_lossless || first->tag == tag('V', 'P', '8', 'X') ? 2 : 1);

  const bool is_extended = first->tag == tag('V', 'P', '8', 'X');
  const unsigned flags = is_extended ? number_at(prefix, first->begin, 1) : 0;
  if ((flags & kIccFlag) != 0) info.notes.add(ImageNote::kIccIgnored);
  if ((flags & kAnimationFlag) != 0) info.notes.add(ImageNote::kAnimatedFirstFrame);
  if ((flags & (kExifFlag | kXmpFlag)) != 0) {
    Orientation orientation;
    const auto inside = prefix.first(static_cast<std::size_t>(std::min<std::uint64_t>(prefix.size(), riff_end)));
    const std::uint64_t seen = read_metadata(inside, first->end(), orientation, info.notes);
    info.orientation = orientation.value();
    const std::uint64_t end =
        std::min({riff_end, total_bytes, std::max<std::uint64_t>(seen, prefix.size()) + kMostTail});
    if (prefix.size() < total_bytes && seen < end) {
      // `seen` is the chunk that is not all here: the pixels, or metadata. A large one is jumped over by its size.
      std::uint64_t begin = seen;
      if (const auto cut = chunk_at(prefix, seen)) {
        const bool is_metadata = cut->tag == tag('E', 'X', 'I', 'F') || cut->tag == tag('X', 'M', 'P', ' ');
        if (!is_metadata) begin = cut->end();
      }
      if (begin < std::min(riff_end, total_bytes)) {
        probe.need_begin = begin;
        probe.need_end = std::min({riff_end, total_bytes, begin + kMostTail});
      }
    }
  }
  probe.info = info;
  return probe;
}

void read_webp_tail(std::span<const std::byte> piece, ImageInfo& info) {
  Orientation orientation;
  read_metadata(piece, 0, orientation, info.notes);
  info.orientation = orientation.value(info.orientation);
}

}  // namespace stoker

#include "media/gif/gif_header.h"

#include <fmt/format.h>

#include <algorithm>

#include "media/limits.h"

namespace stoker {
namespace {

constexpr std::size_t kScreenBytes = 13;
constexpr std::size_t kFrameBytes = 10;  // separator included
constexpr int kExtension = 0x21;
constexpr int kFrame = 0x2C;
constexpr int kTrailer = 0x3B;
constexpr int kGraphicControl = 0xF9;

int byte_at(std::span<const std::byte> file, std::size_t at) { return std::to_integer<int>(file[at]); }
int word_at(std::span<const std::byte> file, std::size_t at) { return byte_at(file, at) | byte_at(file, at + 1) << 8; }
std::size_t palette_bytes(int flags) { return (flags & 0x80) != 0 ? std::size_t{6} << (flags & 7) : 0; }

void read_palette(std::span<const std::byte> bytes, GifHeader& header) {
  bool is_grey = true;  // then Pillow takes the indices for grey levels, else what the palette lacks is black
  for (std::size_t i = 0; i < bytes.size(); ++i) is_grey = is_grey && std::to_integer<std::size_t>(bytes[i]) == i / 3;
  for (std::size_t i = 0; i < 256; ++i) header.colours[i].fill(is_grey ? static_cast<std::uint8_t>(i) : 0);
  for (std::size_t i = 0; i + 2 < bytes.size(); i += 3) {
    for (std::size_t c = 0; c < 3; ++c) header.colours[i / 3][c] = std::to_integer<std::uint8_t>(bytes[i + c]);
  }
}

/// The end of a chain of data blocks that begins at `at`, or nothing if it is not all there.
std::optional<std::size_t> end_of_blocks(std::span<const std::byte> file, std::size_t at) {
  while (at < file.size()) {
    const int n = byte_at(file, at);
    at += 1 + static_cast<std::size_t>(n);
    if (n == 0) return at;
  }
  return std::nullopt;
}

}  // namespace

Result<std::optional<GifHeader>> read_gif_header(std::span<const std::byte> file, std::size_t& need) {
  const std::optional<GifHeader> nothing;
  GifHeader header;
  need = kScreenBytes;
  if (file.size() < need) return nothing;
  header.width_px = word_at(file, 6);
  header.height_px = word_at(file, 8);
  const int flags = byte_at(file, 10);
  const std::size_t n_global = palette_bytes(flags);
  need = kScreenBytes + n_global;
  if (file.size() < need) return nothing;
  read_palette(file.subspan(kScreenBytes, n_global), header);

  std::size_t at = need;
  for (;;) {
    need = at + 1;
    if (at >= file.size()) return nothing;
    const int introducer = byte_at(file, at);
    if (introducer == kTrailer)
      return Status(Reason::kImgCorrupt, fmt::format("GIF ends at byte {} without a frame", at));
    if (introducer == kExtension) {
      need = at + 7;
      if (file.size() < need) return nothing;
      if (byte_at(file, at + 1) == kGraphicControl && byte_at(file, at + 2) >= 4 && (byte_at(file, at + 3) & 1) != 0) {
        header.transparent = byte_at(file, at + 6);
      }
      const auto end = end_of_blocks(file, at + 2);
      need = file.size() + 1;
      if (!end) return nothing;
      at = *end;
    } else if (introducer == kFrame) {
      break;
    } else {
      ++at;  // as Pillow does
    }
  }
  need = at + kFrameBytes;
  if (file.size() < need) return nothing;
  header.left = word_at(file, at + 1);
  header.top = word_at(file, at + 3);
  header.frame_width = word_at(file, at + 5);
  header.frame_height = word_at(file, at + 7);
  const int frame_flags = byte_at(file, at + 9);
  header.is_interlaced = (frame_flags & 0x40) != 0;
  const std::size_t n_local = palette_bytes(frame_flags);
  need = at + kFrameBytes + n_local + 1;
  if (file.size() < need) return nothing;
  if (n_local > 0) read_palette(file.subspan(at + kFrameBytes, n_local), header);
  if (header.frame_width == 0 || header.frame_height == 0)
    return Status(Reason::kImgCorrupt, "GIF frame without pixels");
  header.width_px = std::max(header.width_px, header.left + header.frame_width);
  header.height_px = std::max(header.height_px, header.top + header.frame_height);
  header.pixels_begin = need - 1;
  return std::optional(header);
}

Result<Probe> probe_gif(std::span<const std::byte> prefix, std::uint64_t total_bytes, const ImageLimits& limits) {
  std::size_t need = 0;
  STOKER_TRY(const auto header, read_gif_header(prefix, need));
  if (!header) return need_more(prefix.size(), need, total_bytes);
  STOKER_CHECKED(check_pixels(header->height_px, header->width_px, limits));
  ImageInfo info;
  info.format = ImageFormat::kGif;
  info.height_px = header->height_px;
  info.width_px = header->width_px;
  info.interlaced = header->is_interlaced;
  if (info.interlaced) {
    info.scratch_bytes = static_cast<std::size_t>(header->frame_height) * static_cast<std::size_t>(header->frame_width);
  }
  Probe probe;
  probe.info = info;
  return probe;
}

}  // namespace stoker

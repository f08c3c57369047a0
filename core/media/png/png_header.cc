#include "media/png/png_header.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>

#include "media/exif.h"
#include "media/limits.h"

namespace stoker {
namespace {

using std::string_view_literals::operator""sv;

constexpr std::size_t kSignatureBytes = 8;

std::uint32_t number_at(std::span<const std::byte> file, std::size_t at) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i) value = value << 8 | std::to_integer<std::uint32_t>(file[at + i]);
  return value;
}

constexpr std::uint64_t kPngEndBytes = 12;   ///< IEND
constexpr std::uint64_t kTailBytes = 65536;  ///< read for an orientation behind the pixels

/// A chunk of metadata, if it is one and sound.
void read_metadata(std::span<const std::byte> file, const PngChunk& chunk, Orientation& orientation,
                   ImageNotes& notes) {
  const auto body = file.subspan(chunk.begin + 8, chunk.length);
  const std::string_view text(reinterpret_cast<const char*>(body.data()), body.size());
  const bool is_exif = chunk.type == "eXIf";
  const bool is_xmp =
      chunk.type == "iTXt" && text.starts_with("XML:com.adobe.xmp\0\0"sv);  // second zero: not compressed
  if ((!is_exif && !is_xmp) || !is_png_chunk_sound(file, chunk)) return;
  if (is_exif) orientation.set_exif(body, notes);
  if (is_xmp) orientation.set_xmp(body);
}

bool is_depth_allowed(int colour_type, int depth) {
  switch (colour_type) {
    case 0:
      return depth == 1 || depth == 2 || depth == 4 || depth == 8 || depth == 16;
    case 3:
      return depth == 1 || depth == 2 || depth == 4 || depth == 8;
    case 2:
    case 4:
    case 6:
      return depth == 8 || depth == 16;
    default:
      return false;
  }
}

}  // namespace

Result<std::optional<PngChunk>> png_chunk_at(std::span<const std::byte> file, std::size_t at) {
  if (at + 8 > file.size()) return std::optional<PngChunk>();
  PngChunk chunk;
  chunk.begin = at;
  chunk.length = number_at(file, at);
  chunk.type = std::string_view(reinterpret_cast<const char*>(file.data()) + at + 4, 4);
  const bool is_named = std::all_of(chunk.type.begin(), chunk.type.end(),
                                    [](char ch) { return (ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z'); });
  if (!is_named || chunk.length > 0x7FFFFFFF)
    return Status(Reason::kImgCorrupt, fmt::format("no PNG chunk at byte {}", at));
  return std::optional(chunk);
}

Result<PngHeader> read_png_header(std::span<const std::byte> file) {
  STOKER_TRY(const auto chunk, png_chunk_at(file, kSignatureBytes));
  if (!chunk || chunk->type != "IHDR" || chunk->length != 13 || file.size() < kPngHeaderBytes) {
    return Status(Reason::kImgCorrupt, "PNG does not begin with IHDR");
  }
  const std::uint32_t width = number_at(file, 16);
  const std::uint32_t height = number_at(file, 20);
  PngHeader header;
  header.depth = std::to_integer<int>(file[24]);
  header.colour_type = std::to_integer<int>(file[25]);
  header.is_interlaced = std::to_integer<int>(file[28]) == 1;
  if (width == 0 || height == 0 || width > 0x7FFFFFFF || height > 0x7FFFFFFF ||
      !is_depth_allowed(header.colour_type, header.depth) || file[26] != std::byte{0} || file[27] != std::byte{0} ||
      std::to_integer<int>(file[28]) > 1) {
    return Status(Reason::kImgCorrupt, "PNG header with values outside the standard");
  }
  header.width_px = static_cast<int>(width);
  header.height_px = static_cast<int>(height);
  return header;
}

Result<Probe> probe_png(std::span<const std::byte> prefix, std::uint64_t total_bytes, const ImageLimits& limits) {
  if (prefix.size() < kPngHeaderBytes) return need_more(prefix.size(), kPngHeaderBytes, total_bytes);
  STOKER_TRY(const PngHeader header, read_png_header(prefix));
  STOKER_CHECKED(check_pixels(header.height_px, header.width_px, limits));
  ImageInfo info;
  info.format = ImageFormat::kPng;
  info.height_px = header.height_px;
  info.width_px = header.width_px;
  info.interlaced = header.is_interlaced;
  bool has_transparency = false;
  Orientation orientation;
  std::size_t at = kPngHeaderBytes;
  std::uint64_t pixels_end = 0;  // of the first chunk of them
  for (;;) {
    STOKER_TRY(const auto chunk, png_chunk_at(prefix, at));
    if (!chunk) return need_more(prefix.size(), at + 8, total_bytes);
    if (chunk->type == "IDAT") {
      pixels_end = chunk->end();
      break;
    }
    if (chunk->type == "IEND") return Status(Reason::kImgCorrupt, "PNG without pixels");
    if (chunk->end() > prefix.size()) return need_more(prefix.size(), chunk->end(), total_bytes);
    if (chunk->type == "tRNS") has_transparency = true;
    if (chunk->type == "iCCP") info.notes.add(ImageNote::kIccIgnored);
    if (chunk->type == "acTL") info.notes.add(ImageNote::kAnimatedFirstFrame);
    read_metadata(prefix, *chunk, orientation, info.notes);
    at = chunk->end();
  }
  const bool is_final = orientation.has_exif();  // a file has one such chunk
  if (!is_final && (total_bytes == 0 || prefix.size() >= total_bytes)) {
    for (;;) {
      const auto chunk = png_chunk_at(prefix, at);
      if (!chunk.ok() || !*chunk || (*chunk)->end() > prefix.size()) break;  // decoding will complain
      read_metadata(prefix, **chunk, orientation, info.notes);
      at = (*chunk)->end();
    }
  }
  info.orientation = orientation.value();
  if (info.interlaced) {
    info.scratch_bytes = static_cast<std::size_t>(info.height_px) * static_cast<std::size_t>(info.width_px) *
                         bytes_per_pixel(png_samples(header, has_transparency));
  }
  Probe probe;
  probe.info = info;
  // Behind one chunk that has all pixels there is nothing but the end, or what matters begins right there.
  if (!is_final && prefix.size() < total_bytes && pixels_end + kPngEndBytes < total_bytes) {
    probe.need_begin =
        std::max<std::uint64_t>({prefix.size(), pixels_end, total_bytes - std::min(total_bytes, kTailBytes)});
    probe.need_end = total_bytes;
  }
  return probe;
}

void read_png_tail(std::span<const std::byte> piece, ImageInfo& info) {
  Orientation orientation;
  for (std::size_t at = 0; at + 12 <= piece.size(); ++at) {
    const char last = static_cast<char>(piece[at + 7]);
    if (last != 'f' && last != 't') continue;  // cheap, before a chunk's name is looked at
    const auto chunk = png_chunk_at(piece, at);
    if (!chunk.ok() || !*chunk || ((*chunk)->type != "eXIf" && (*chunk)->type != "iTXt")) continue;
    if (is_png_chunk_sound(piece, **chunk)) read_metadata(piece, **chunk, orientation, info.notes);
  }
  info.orientation = orientation.value(info.orientation);
}

bool is_png_chunk_sound(std::span<const std::byte> file, const PngChunk& chunk) {
  if (chunk.end() > file.size()) return false;
  const auto* begin = reinterpret_cast<const Bytef*>(file.data() + chunk.begin + 4);
  return crc32_z(0, begin, chunk.length + 4) == number_at(file, chunk.begin + 8 + chunk.length);
}

PngSamples png_samples(const PngHeader& header, bool has_transparency) {
  if (header.depth == 16) return PngSamples::kRgba16;
  if (header.has_alpha() || has_transparency) return PngSamples::kRgba8;
  return header.colour_type == 0 ? PngSamples::kGrey8 : PngSamples::kRgb8;
}

std::size_t bytes_per_pixel(PngSamples samples) {
  switch (samples) {
    case PngSamples::kGrey8:
      return 1;
    case PngSamples::kRgb8:
      return 3;
    case PngSamples::kRgba8:
      return 4;
    case PngSamples::kRgba16:
      return 8;
  }
  return 8;
}

}  // namespace stoker

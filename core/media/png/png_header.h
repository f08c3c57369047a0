#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "base/result.h"
#include "media/image.h"

namespace stoker {

/// One chunk of a PNG. Source: ISO/IEC 15948:2004, clause 5.3.
struct PngChunk {
  std::string_view type;   ///< four bytes, in the file
  std::size_t begin = 0;   ///< of its length field
  std::size_t length = 0;  ///< of its data, which begins at begin + 8
  std::size_t end() const { return begin + 12 + length; }
};

/// The chunk at `at`, or nothing if its first eight bytes are not there. IMG_CORRUPT if they are no chunk's.
Result<std::optional<PngChunk>> png_chunk_at(std::span<const std::byte> file, std::size_t at);

/// The fields of IHDR.
struct PngHeader {
  int height_px = 0;
  int width_px = 0;
  int depth = 0;
  int colour_type = 0;
  bool is_interlaced = false;

  bool is_grey() const { return (colour_type & 2) == 0; }
  bool has_alpha() const { return (colour_type & 4) != 0; }
};

/// IHDR of a file that begins with PNG's signature and has at least kPngHeaderBytes.
inline constexpr std::size_t kPngHeaderBytes = 33;
Result<PngHeader> read_png_header(std::span<const std::byte> file);

/// `probe` for PNG: IHDR, and the chunks up to IDAT, or to the end if they are there, for the orientation. No chunk is
/// inflated.
Result<Probe> probe_png(std::span<const std::byte> prefix, std::uint64_t total_bytes, const ImageLimits& limits);

/// An orientation in the last bytes of a PNG, wherever they begin: chunks are recognised by their checksums.
void read_png_tail(std::span<const std::byte> piece, ImageInfo& info);

/// Whether the chunk's checksum is right; false if it is not all there.
bool is_png_chunk_sound(std::span<const std::byte> file, const PngChunk& chunk);

/// How a picture's pixels leave the codec.
enum class PngSamples : std::uint8_t { kGrey8, kRgb8, kRgba8, kRgba16 };
PngSamples png_samples(const PngHeader& header, bool has_transparency);
std::size_t bytes_per_pixel(PngSamples samples);

}  // namespace stoker

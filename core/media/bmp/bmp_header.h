#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/result.h"
#include "media/image.h"

namespace stoker {

/// How a BMP's pixels are stored.
enum class BmpPixels : std::uint8_t { kPalette, kRle4, kRle8, kRgb555, kRgb565, kBytes };

struct BmpHeader {
  int height_px = 0;
  int width_px = 0;
  bool is_top_down = false;
  BmpPixels pixels = BmpPixels::kPalette;
  int bits = 0;                            ///< per pixel
  std::array<std::uint8_t, 4> channels{};  ///< kBytes: where red, green, blue and alpha lie in a pixel
  bool has_alpha = false;
  std::size_t palette_begin = 0;
  std::size_t palette_step = 4;  ///< bytes per colour, blue first
  std::size_t n_colours = 0;
  std::size_t pixels_begin = 0;

  std::size_t stride() const {
    return (static_cast<std::size_t>(width_px) * static_cast<std::size_t>(bits) + 31) / 32 * 4;
  }
  std::size_t row_bytes() const {
    return (static_cast<std::size_t>(width_px) * static_cast<std::size_t>(bits) + 7) / 8;
  }
};

/// Whether a file begins as a BMP does: "BM" and a known header size.
bool begins_as_bmp(std::string_view bytes);

/// @return nothing if `file` ends inside the header; IMG_CORRUPT, IMG_UNSUPPORTED.
/// Source: Microsoft, Bitmap Storage (BITMAPCOREHEADER to BITMAPV5HEADER); which layouts are taken: Pillow 13,
/// BmpImagePlugin.
Result<std::optional<BmpHeader>> read_bmp_header(std::span<const std::byte> file);

Result<Probe> probe_bmp(std::span<const std::byte> prefix, std::uint64_t total_bytes, const ImageLimits& limits);

}  // namespace stoker

#pragma once

#include <array>
#include <cstdint>

namespace stoker {

/// How a YCbCr row's chroma is stored: "fancy" triangle filters bring it to full width, as libjpeg-turbo's default
/// does.
enum class ChromaLayout : std::uint8_t { kFull, kHalfWidth, kHalfBoth };

/// One row of a YCbCr picture as the inverse DCT left it. `far` rows are read for kHalfBoth only: the chroma row on the
/// other side of this luma row (a copy of `near` at the picture's edge).
struct YccRow {
  const std::uint8_t* y;
  std::array<const std::uint8_t*, 2> near;  ///< Cb, Cr
  std::array<const std::uint8_t*, 2> far;
};

/// Converts one row to R, G, B planes, bit-equal to libjpeg-turbo (jdsample.c, jdcolor.c; version 2.1.5) for chroma
/// widths above 2.
/// @param chroma_width  Samples in a chroma row, ceil(width / 2) for the half layouts, else the width.
/// @param scratch  2 * chroma_width + 256 int16.
/// Reads and writes up to 64 bytes behind each row's end.
void ycc_to_rgb(ChromaLayout layout, const YccRow& row, int chroma_width, std::int16_t* scratch,
                const std::array<std::uint8_t*, 3>& rgb);

/// Splits `width` interleaved RGB pixels into planes. Reads and writes up to 64 (times three) bytes behind the ends.
void split_rgb(const std::uint8_t* interleaved, int width, const std::array<std::uint8_t*, 3>& rgb);

}  // namespace stoker

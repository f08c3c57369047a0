#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "data/rgb.h"

namespace stoker::testing {

/// A picture of ramps, edges and noise, the same for the same arguments.
RgbImage picture(int height_px, int width_px, unsigned seed);

struct JpegStyle {
  int quality = 90;
  int luma_h = 2;  ///< sampling factors of Y; chroma has 1 x 1
  int luma_v = 2;
  bool is_progressive = false;
  bool is_grey = false;
  int restart_interval = 0;
  int orientation = 0;  ///< 0: no EXIF
};
std::vector<std::byte> encode_jpeg(const RgbImage& image, const JpegStyle& style);
/// The library's own scanlines: the oracle.
RgbImage decode_jpeg_plainly(const std::vector<std::byte>& file);

/// A file of testdata/pictures; the test fails if it is not there.
std::vector<std::byte> test_picture(const std::string& name);

/// RGB, 8 bits.
std::vector<std::byte> encode_png(const RgbImage& image, bool is_interlaced);

}  // namespace stoker::testing

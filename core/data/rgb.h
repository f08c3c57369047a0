#pragma once

#include <cstdint>
#include <vector>

namespace stoker {

/// A whole picture, (height, width, 3) uint8 interleaved. For inspection and tests; the hot path never holds one.
struct RgbImage {
  int height_px = 0;
  int width_px = 0;
  std::vector<std::uint8_t> pixels;
};

}  // namespace stoker

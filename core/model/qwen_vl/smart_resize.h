#pragma once

#include <cstdint>

#include "base/result.h"

namespace stoker::qwen_vl {

struct PixelLimits {
  std::int64_t min_pixels = 65536;
  std::int64_t max_pixels = 16777216;
};

struct SizePx {
  int height = 0;
  int width = 0;
  bool operator==(const SizePx&) const = default;
};

/// The size that the reference resizes an image to: both sides multiples of `factor` (patch * merge), the area within
/// the limits where that can be, the ratio kept as far as that allows. In doubles, with Python's rounding to even.
/// @param size  Upright, both sides at least 1.
/// @return IMG_ASPECT if the longer side is more than 200 times the shorter.
/// Source: transformers 5.18.0, models/qwen2_vl/image_processing_qwen2_vl.py, smart_resize.
Result<SizePx> smart_resize(SizePx size, int factor, PixelLimits limits);

}  // namespace stoker::qwen_vl

#pragma once

#include <cstdint>

#include "base/result.h"
#include "model/profile.h"

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
/// @param size        Upright, both sides at least 1.
/// @param min_pixels, max_pixels  Fractional only where qwen-vl-utils shares a budget among frames.
/// @return IMG_ASPECT if the longer side is more than 200 times the shorter; IMG_SIZE if the target has no pixels or
/// too many to address, and for kQwenVlUtils if the limits are out of order.
/// Source: transformers 5.18.0, models/qwen2_vl/image_processing_qwen2_vl.py, smart_resize (4.57.3 has the same);
/// qwen-vl-utils 0.0.14, vision_process.py, smart_resize.
Result<SizePx> smart_resize(SizePx size, int factor, double min_pixels, double max_pixels, ImageSizeRule rule);

inline Result<SizePx> smart_resize(SizePx size, int factor, PixelLimits limits,
                                   ImageSizeRule rule = ImageSizeRule::kTransformers) {
  return smart_resize(size, factor, static_cast<double>(limits.min_pixels), static_cast<double>(limits.max_pixels),
                      rule);
}

}  // namespace stoker::qwen_vl

#include "model/qwen_vl/smart_resize.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace stoker::qwen_vl {

Result<SizePx> smart_resize(SizePx size, int factor, PixelLimits limits) {
  const double h = size.height;
  const double w = size.width;
  const double f = factor;
  const double ratio = std::max(h, w) / std::min(h, w);
  if (ratio > 200) {
    return Status(Reason::kImgAspect,
                  fmt::format("{}x{} (height x width), ratio {:.1f} > 200", size.height, size.width, ratio));
  }
  const auto lo = static_cast<double>(limits.min_pixels);
  const auto hi = static_cast<double>(limits.max_pixels);
  double target_h = std::nearbyint(h / f) * f;  // the default rounding mode is to even, as Python's round()
  double target_w = std::nearbyint(w / f) * f;
  if (target_h * target_w > hi) {
    const double beta = std::sqrt(h * w / hi);
    target_h = std::max(f, std::floor(h / beta / f) * f);
    target_w = std::max(f, std::floor(w / beta / f) * f);
  } else if (target_h * target_w < lo) {
    const double beta = std::sqrt(lo / (h * w));
    target_h = std::ceil(h * beta / f) * f;
    target_w = std::ceil(w * beta / f) * f;
  }
  return SizePx{static_cast<int>(target_h), static_cast<int>(target_w)};
}

}  // namespace stoker::qwen_vl

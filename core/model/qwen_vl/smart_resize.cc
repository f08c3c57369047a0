#include "model/qwen_vl/smart_resize.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace stoker::qwen_vl {

Result<SizePx> smart_resize(SizePx size, int factor, double min_pixels, double max_pixels, ImageSizeRule rule) {
  const bool is_qvu = rule == ImageSizeRule::kQwenVlUtils;
  const double h = size.height;
  const double w = size.width;
  const double f = factor;
  if (is_qvu && max_pixels < min_pixels) {
    return Status(Reason::kImgSize, fmt::format("max_pixels {} is below min_pixels {}", max_pixels, min_pixels));
  }
  const double ratio = std::max(h, w) / std::min(h, w);
  if (ratio > 200) {
    return Status(Reason::kImgAspect,
                  fmt::format("{}x{} (height x width), ratio {:.1f} > 200", size.height, size.width, ratio));
  }
  double target_h = std::nearbyint(h / f) * f;  // the default rounding mode is to even, as Python's round()
  double target_w = std::nearbyint(w / f) * f;
  if (is_qvu) {
    target_h = std::max(f, target_h);
    target_w = std::max(f, target_w);
  }
  const double least = is_qvu ? 0 : f;  // the one does not hold a shrunk side at one factor, the other does
  if (target_h * target_w > max_pixels) {
    const double beta = std::sqrt(h * w / max_pixels);
    target_h = std::max(least, std::floor(h / beta / f) * f);
    target_w = std::max(least, std::floor(w / beta / f) * f);
  } else if (target_h * target_w < min_pixels) {
    const double beta = std::sqrt(min_pixels / (h * w));
    target_h = std::ceil(h * beta / f) * f;
    target_w = std::ceil(w * beta / f) * f;
  }
  constexpr double kLongest = 1 << 24;
  if (target_h < f || target_w < f || target_h > kLongest || target_w > kLongest) {
    return Status(Reason::kImgSize, fmt::format("{}x{} (height x width) would become {}x{}", size.height, size.width,
                                                target_h, target_w));
  }
  return SizePx{static_cast<int>(target_h), static_cast<int>(target_w)};
}

}  // namespace stoker::qwen_vl

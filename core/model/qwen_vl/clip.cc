#include "model/qwen_vl/clip.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace stoker::qwen_vl {
namespace {

constexpr double kFpsIfUnknown = 24;           // transformers, video_processing_qwen3_vl.py
constexpr std::int64_t kMostFrames = 768;      // qwen-vl-utils, FPS_MAX_FRAMES
constexpr double kQvuSequenceTokens = 128000;  // MODEL_SEQ_LEN
constexpr std::int64_t kQvuMostTokensPerFrame = 768;
constexpr std::int64_t kQvuLeastTokensPerFrame = 128;

Status too_few(std::int64_t wanted, std::int64_t have) {
  return {Reason::kClipFrames, fmt::format("{} frames are wanted of a clip of {}", wanted, have)};
}

/// round_half_even(numpy.linspace(0, last, n)): step * i in double, the last exactly the end.
std::vector<std::int64_t> linspace(std::int64_t last, std::int64_t n) {
  std::vector<std::int64_t> out(static_cast<std::size_t>(n));
  const double step = n > 1 ? static_cast<double>(last) / static_cast<double>(n - 1) : 0;
  for (std::int64_t i = 0; i < n; ++i) {
    out[static_cast<std::size_t>(i)] = static_cast<std::int64_t>(std::nearbyint(static_cast<double>(i) * step));
  }
  if (n > 1) out.back() = last;
  return out;
}

/// round_half_even(torch.linspace(0, last, n)): float32, from both ends to the middle, each value one fused
/// multiply-add.
std::vector<std::int64_t> linspace_float32(std::int64_t last, std::int64_t n) {
  std::vector<std::int64_t> out(static_cast<std::size_t>(n));
  const auto end = static_cast<float>(last);
  const float step = end / static_cast<float>(n - 1);
  for (std::int64_t i = 0; i < n; ++i) {
    const float value =
        i < n / 2 ? std::fma(step, static_cast<float>(i), 0.0F) : std::fma(-step, static_cast<float>(n - 1 - i), end);
    out[static_cast<std::size_t>(i)] = static_cast<std::int64_t>(std::nearbyint(value));
  }
  return out;
}

/// trunc(torch.arange(0, end, step)) as its vector kernel makes it: whole groups of eight from a base each.
std::vector<std::int64_t> arange(std::int64_t end, double step) {
  const auto n = static_cast<std::int64_t>(std::ceil(static_cast<double>(end) / step));
  std::vector<std::int64_t> out;
  out.reserve(static_cast<std::size_t>(n));
  const auto narrow_step = static_cast<float>(step);
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t group = i - i % 8;
    float value = 0;
    if (group + 8 <= n) {
      value = static_cast<float>(static_cast<double>(group) * step) + static_cast<float>(i % 8) * narrow_step;
    } else {
      value = static_cast<float>(static_cast<double>(i) * step);
    }
    out.push_back(std::min(end - 1, static_cast<std::int64_t>(value)));
  }
  return out;
}

Result<std::vector<std::int64_t>> sample_qwen3(const ClipSource& source, const SamplingRequest& request) {
  std::int64_t n = request.n_frames;
  if (n == 0) {
    const double fps = source.fps > 0 ? source.fps : kFpsIfUnknown;
    n = static_cast<std::int64_t>(static_cast<double>(source.n_frames) / fps * request.fps);
    n = std::min({std::max(n, request.min_frames), request.max_frames, source.n_frames});
  }
  if (n < 1) return too_few(1, source.n_frames);
  return linspace(source.n_frames - 1, n);
}

Result<std::vector<std::int64_t>> sample_qwen2(const ClipSource& source, const SamplingRequest& request) {
  constexpr std::int64_t kTemporal = 2;
  std::int64_t n = 0;
  if (request.n_frames > 0) {
    n = static_cast<std::int64_t>(std::nearbyint(static_cast<double>(request.n_frames) / kTemporal)) * kTemporal;
  } else {
    if (source.fps <= 0)
      return Status(Reason::kClipFrames,
                    "the rate of the clip is not known: say it in the row as sample_fps or raw_fps");
    const std::int64_t most = std::min(request.max_frames, source.n_frames) / kTemporal * kTemporal;
    const double wanted = std::min({std::max(static_cast<double>(source.n_frames) / source.fps * request.fps,
                                             static_cast<double>(request.min_frames)),
                                    static_cast<double>(most), static_cast<double>(source.n_frames)});
    n = static_cast<std::int64_t>(std::floor(wanted / kTemporal)) * kTemporal;
  }
  if (n < 1 || n > source.n_frames) return too_few(std::max<std::int64_t>(n, kTemporal), source.n_frames);
  return arange(source.n_frames, static_cast<double>(source.n_frames) / static_cast<double>(n));
}

Result<std::vector<std::int64_t>> sample_qvu(const ClipSource& source, const SamplingRequest& request) {
  std::int64_t n = 0;
  if (request.n_frames > 0) {
    n = static_cast<std::int64_t>(std::nearbyint(static_cast<double>(request.n_frames) / 2)) * 2;
  } else {
    if (source.fps <= 0)
      return Status(Reason::kClipFrames,
                    "the rate of the clip is not known: say it in the row as sample_fps or raw_fps");
    const auto total = static_cast<double>(source.n_frames);
    const auto lower = static_cast<double>((request.min_frames + 1) / 2 * 2);
    const auto upper = static_cast<double>(std::min({request.max_frames, kMostFrames, source.n_frames}) / 2 * 2);
    const double wanted = std::min(std::min(std::max(total / source.fps * request.fps, lower), upper), total);
    n = static_cast<std::int64_t>(std::floor(wanted / 2)) * 2;
  }
  if (n < 2 || n > source.n_frames) return too_few(std::max<std::int64_t>(n, 2), source.n_frames);
  return linspace_float32(source.n_frames - 1, n);
}

/// Python's `//` and `int(1.05 * x)` on positive numbers.
std::int64_t floor_of_raised(std::int64_t least) {
  return static_cast<std::int64_t>(static_cast<double>(least) * 1.05);
}

Result<SizePx> size_over_clip(ClipSizeRule rule, std::int64_t n_frames, SizePx frame, const ClipSizing& sizing) {
  const double f = sizing.factor;
  const auto t = static_cast<double>(n_frames);
  const double tau = sizing.temporal_patch;
  if (n_frames < sizing.temporal_patch) {
    return Status(Reason::kClipFrames,
                  fmt::format("a clip of {} frames; this family takes at least {}", n_frames, sizing.temporal_patch));
  }
  double h = frame.height;
  double w = frame.width;
  if (h < f || w < f) {
    if (rule == ClipSizeRule::kTransformers457) {
      return Status(Reason::kImgSize, fmt::format("frames of {}x{} (height x width) have a side below {}", frame.height,
                                                  frame.width, sizing.factor));
    }
    const double scale = std::max(f / h, f / w);
    h = std::trunc(h * scale);
    w = std::trunc(w * scale);
  }
  const double ratio = std::max(h, w) / std::min(h, w);
  if (ratio > 200) {
    return Status(Reason::kImgAspect,
                  fmt::format("{}x{} (height x width), ratio {:.1f} > 200", frame.height, frame.width, ratio));
  }
  double hi = static_cast<double>(sizing.limits.max_pixels);
  const auto lo = static_cast<double>(sizing.limits.min_pixels);
  if (sizing.is_capped) {
    const std::int64_t per_frame =
        std::max(std::min(sizing.max_video_tokens * sizing.factor * sizing.factor, sizing.limits.max_pixels / n_frames),
                 floor_of_raised(sizing.limits.min_pixels));
    hi = static_cast<double>(per_frame * n_frames);
  }
  double target_h = std::nearbyint(h / f) * f;
  double target_w = std::nearbyint(w / f) * f;
  const double rounded_t = std::nearbyint(t / tau) * tau;
  if (rounded_t * target_h * target_w > hi) {
    const double beta = std::sqrt(t * h * w / hi);
    target_h = std::max(f, std::floor(h / beta / f) * f);
    target_w = std::max(f, std::floor(w / beta / f) * f);
  } else if (rounded_t * target_h * target_w < lo) {
    const double beta = std::sqrt(lo / (t * h * w));
    target_h = std::ceil(h * beta / f) * f;
    target_w = std::ceil(w * beta / f) * f;
  }
  constexpr double kLongest = 1 << 24;
  if (target_h > kLongest || target_w > kLongest) {
    return Status(Reason::kImgSize,
                  fmt::format("frames of {}x{} would become {}x{}", frame.height, frame.width, target_h, target_w));
  }
  return SizePx{static_cast<int>(target_h), static_cast<int>(target_w)};
}

Result<SizePx> size_per_frame(std::int64_t n_frames, SizePx frame, const ClipSizing& sizing) {
  PixelLimits limits = sizing.limits;
  if (sizing.is_capped) {
    const std::int64_t factor2 = std::int64_t{sizing.factor} * sizing.factor;
    const auto total = static_cast<std::int64_t>(static_cast<double>(sizing.max_video_tokens * factor2) * 0.9);
    limits.max_pixels = std::max(std::min(limits.max_pixels, total * sizing.temporal_patch / n_frames),
                                 floor_of_raised(limits.min_pixels));
  }
  return smart_resize(frame, sizing.factor, limits);
}

}  // namespace

Result<std::vector<std::int64_t>> sample_frames(const Family& family, FrameSampling rule, const ClipSource& source,
                                                const SamplingRequest& request) {
  if (rule == FrameSampling::kQwenVlUtils) return sample_qvu(source, request);
  return family.clip_tokens == ClipTokens::kBlockPerTime ? sample_qwen3(source, request)
                                                         : sample_qwen2(source, request);
}

Result<SizePx> clip_size(const Family& family, ClipSizeRule rule, std::int64_t n_frames, SizePx frame,
                         const ClipSizing& sizing) {
  if (n_frames < 1) return Status(Reason::kClipFrames, "a clip without frames");
  return family.clip_budget == ClipBudget::kPerClip ? size_over_clip(rule, n_frames, frame, sizing)
                                                    : size_per_frame(n_frames, frame, sizing);
}

Result<SizePx> qwen_vl_utils_image_size(SizePx picture, int factor, const SizeRequest& request) {
  const std::int64_t factor2 = std::int64_t{factor} * factor;
  const bool is_resized = request.resized.height > 0 && request.resized.width > 0;
  const auto or_default = [&](std::int64_t said, std::int64_t tokens) {
    return static_cast<double>(said > 0 && !is_resized ? said : tokens * factor2);
  };
  return smart_resize(is_resized ? request.resized : picture, factor, or_default(request.min_pixels, 4),
                      or_default(request.max_pixels, 16384), ImageSizeRule::kQwenVlUtils);
}

Result<QwenVlUtilsSizes> qwen_vl_utils_clip_size(std::int64_t n_frames, SizePx frame, int factor,
                                                 const SizeRequest& request) {
  if (n_frames < 1) return Status(Reason::kClipFrames, "a clip without frames");
  QwenVlUtilsSizes sizes;
  STOKER_TRY(sizes.first, qwen_vl_utils_image_size(frame, 2 * factor, request));
  const std::int64_t factor2 = std::int64_t{factor} * factor;
  if (request.resized.height > 0 && request.resized.width > 0) {
    STOKER_TRY(sizes.second, qwen_vl_utils_image_size(sizes.first, factor, request));
    return sizes;
  }
  const auto n = static_cast<double>(n_frames + n_frames % 2);
  const std::int64_t least = request.min_pixels > 0 ? request.min_pixels : kQvuLeastTokensPerFrame * factor2;
  const double total = request.total_pixels > 0 ? static_cast<double>(request.total_pixels)
                                                : kQvuSequenceTokens * static_cast<double>(factor2) * 0.9;
  double most = std::max(std::min(static_cast<double>(kQvuMostTokensPerFrame * factor2), total / n * 2),
                         static_cast<double>(floor_of_raised(least)));
  if (request.max_pixels > 0) most = std::min(most, static_cast<double>(request.max_pixels));
  STOKER_TRY(sizes.second,
             smart_resize(sizes.first, factor, static_cast<double>(least), most, ImageSizeRule::kQwenVlUtils));
  return sizes;
}

std::vector<double> seconds_of_patches(const ClipTimes& times, int temporal_patch) {
  const auto tau = static_cast<std::size_t>(temporal_patch);
  std::vector<double> out;
  for (std::size_t begin = 0; begin < times.frames.size(); begin += tau) {
    const std::size_t last = std::min(begin + tau, times.frames.size()) - 1;
    const double first_s = static_cast<double>(times.frames[begin]) / times.fps;
    const double last_s = static_cast<double>(times.frames[last]) / times.fps;
    out.push_back((first_s + last_s) / 2);
  }
  return out;
}

std::string timestamp_text(double seconds) { return fmt::format("<{:.1f} seconds>", seconds); }

double seconds_per_grid(const ClipTimes& times, int temporal_patch) {
  const double sampled = static_cast<double>(times.frames.size()) / times.total_frames * times.fps;
  return temporal_patch / sampled;
}

}  // namespace stoker::qwen_vl

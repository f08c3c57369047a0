#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/qwen_vl/family.h"
#include "model/qwen_vl/smart_resize.h"

namespace stoker::qwen_vl {

/// Arithmetic of clips, on numbers alone: which frames, how large, when. Pure. Threads: any.

/// What is known of a source before frames are taken from it.
struct ClipSource {
  std::int64_t n_frames = 0;
  double fps = 0;  ///< average rate; 0: unknown
};

/// How many frames are wanted.
struct SamplingRequest {
  double fps = 2;             ///< wanted rate; not looked at when `n_frames` is given
  std::int64_t n_frames = 0;  ///< wanted number; 0: by rate
  std::int64_t min_frames = 4;
  std::int64_t max_frames = 768;
};

/// The numbers of the frames that the reference takes, ascending.
///
/// - kTransformers, Qwen3-VL: exactly processor's; an unknown rate counts as 24.
/// - kTransformers, Qwen2-VL and 2.5 (`do_sample_frames`, off by default there): torch.arange with a fractional step.
///   Equal in number; an index may differ by 1 from a given build of torch, whose vector width decides roundings.
/// - kQwenVlUtils: torch.linspace in float32 with fused multiply-add, as its AVX2 and AVX-512 kernels do.
///
/// @return CLIP_FRAMES if there are too few frames, or more are wanted than there are.
/// Source: transformers 5.18.0, video_processing_qwen3_vl.py and video_processing_qwen2_vl.py, sample_frames;
/// qwen-vl-utils 0.0.14, vision_process.py, smart_nframes and the readers.
Result<std::vector<std::int64_t>> sample_frames(const Family& family, FrameSampling rule, const ClipSource& source,
                                                const SamplingRequest& request);

/// What decides the size of a clip's frames beside their number and size.
struct ClipSizing {
  int factor = 32;
  int temporal_patch = 2;
  PixelLimits limits;
  std::int64_t max_video_tokens = 768;  ///< of the cap
  bool is_capped = false;               ///< transformers' cap_pixels_per_frame
};

/// The size that every frame of a clip is resized to by transformers.
/// @param n_frames  As given, before any is repeated.
/// @return IMG_ASPECT; IMG_SIZE (a frame too small for 4.57); CLIP_FRAMES if there are fewer than one temporal patch
/// takes and the family refuses that.
/// Source: transformers 5.18.0 and 4.57.3, video_processing_qwen3_vl.py, video_processing_qwen2_vl.py, smart_resize.
Result<SizePx> clip_size(const Family& family, ClipSizeRule rule, std::int64_t n_frames, SizePx frame,
                         const ClipSizing& sizing);

/// What a row asks for itself; 0: nothing.
struct SizeRequest {
  std::int64_t min_pixels = 0;
  std::int64_t max_pixels = 0;
  std::int64_t total_pixels = 0;  ///< clips of qwen-vl-utils only
  SizePx resized;

  bool operator==(const SizeRequest&) const = default;
};

/// What qwen-vl-utils makes of a picture, or of each frame of a list: at most two resizes, one after another.
struct QwenVlUtilsSizes {
  SizePx first;   ///< Pillow's resize of each picture
  SizePx second;  ///< of the stacked clip, in float; equal to `first` where nothing is left to do
};

/// @param factor  patch * merge of the model.
/// @return IMG_ASPECT, IMG_SIZE.
/// Source: qwen-vl-utils 0.0.14, vision_process.py, fetch_image.
Result<SizePx> qwen_vl_utils_image_size(SizePx picture, int factor, const SizeRequest& request);
/// @param n_frames  Of the list, before it is made even. Frames are sized twice: as pictures with twice the factor
/// (0.0.14 hands the factor over where the patch size belongs), then as a clip.
/// Source: the same, fetch_video for a list.
Result<QwenVlUtilsSizes> qwen_vl_utils_clip_size(std::int64_t n_frames, SizePx frame, int factor,
                                                 const SizeRequest& request);

/// When a clip's frames were taken.
struct ClipTimes {
  std::vector<std::int64_t> frames;  ///< their numbers in the source
  double fps = 24;                   ///< of the source
  double total_frames = 0;           ///< of the source; fractional for a list in qwen-vl-utils
};

/// Seconds at which each temporal patch stands: the mean of its first and last frame, the last one repeated to fill it.
/// Source: transformers 5.18.0, processing_qwen3_vl.py, _calculate_timestamps.
std::vector<double> seconds_of_patches(const ClipTimes& times, int temporal_patch);

/// "<0.5 seconds>": one decimal of the exact value, ties to even.
std::string timestamp_text(double seconds);

/// Seconds from one temporal patch to the next, for the positions of Qwen2.5-VL.
/// Source: transformers 5.18.0, processing_qwen2_5_vl.py and video_utils.py, sampled_fps.
double seconds_per_grid(const ClipTimes& times, int temporal_patch);

}  // namespace stoker::qwen_vl

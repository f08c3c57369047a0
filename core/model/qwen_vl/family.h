#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "model/qwen_vl/smart_resize.h"

namespace stoker::qwen_vl {

/// What a checkpoint's image processor config says, as far as preprocessing depends on it. Defaults are those of the
/// class Qwen2VLImageProcessor, which serves every family: transformers 4.57.3 and 5.18.0,
/// models/qwen2_vl/image_processing_qwen2_vl.py.
struct ProcessorConfig {
  int patch = 14;
  int merge = 2;
  int temporal_patch = 2;
  PixelLimits limits = {.min_pixels = 56 * 56, .max_pixels = 28 * 28 * 1280};
  std::array<double, 3> mean = {0.48145466, 0.4578275, 0.40821073};
  std::array<double, 3> std = {0.26862954, 0.26130258, 0.27577711};
  double rescale = 1.0 / 255.0;

  int factor() const { return patch * merge; }
};

/// The same for clips. Patch, merge and temporal patch are the image processor's: there is one vision tower.
struct ClipConfig {
  PixelLimits limits;  ///< per clip or per frame, as the family's budget says
  std::array<double, 3> mean = {0.5, 0.5, 0.5};
  std::array<double, 3> std = {0.5, 0.5, 0.5};
  double rescale = 1.0 / 255.0;
  double fps = 2;  ///< wanted rate when a source is sampled
  int min_frames = 4;
  int max_frames = 768;
  std::int64_t max_video_tokens = 768;  ///< of cap_pixels_per_frame: per frame for Qwen3-VL, the context for the others
};

/// What the pixels of a clip are limited over.
enum class ClipBudget : std::uint8_t { kPerFrame, kPerClip };
/// How a clip stands among the tokens.
enum class ClipTokens : std::uint8_t {
  kOneBlock,      ///< grid_t * grid_h * grid_w / merge^2 pads, one after another
  kBlockPerTime,  ///< for each temporal patch its time as text, then vision_start, pads, vision_end
};

/// What the coordinates of a box are counted in.
enum class BoxUnits : std::uint8_t {
  kPerMille,      ///< thousandths of the picture's sides
  kPixelsOfView,  ///< pixels of the picture as the model sees it, after the resize
};
/// How a box and the name of an object are written.
enum class BoxForm : std::uint8_t {
  kMarks,  ///< <|box_start|>(x,y),(x,y)<|box_end|>, <|object_ref_start|>name<|object_ref_end|>
  kList,   ///< [x, y, x, y], name: for rows that write JSON themselves
};

/// What tells the generations of Qwen-VL apart. One constant per family, in a folder of its own; see
/// docs/model-families.md.
struct Family {
  std::string_view name;                          ///< for people: "Qwen3-VL"
  std::span<const std::string_view> model_types;  ///< `model_type` in config.json
  std::string_view processor_class;               ///< `processor_class` of a processor's config
  ClipTokens clip_tokens = ClipTokens::kOneBlock;
  ClipBudget clip_budget = ClipBudget::kPerFrame;
  bool has_time_in_positions = false;  ///< M-RoPE's t advances by seconds inside a clip
  double tokens_per_second = 1;        ///< of those; config.json's vision_config overrides it
  BoxUnits box_units = BoxUnits::kPerMille;
  BoxForm box_form = BoxForm::kList;
  ClipConfig clip_defaults;  ///< of the class that processes clips
};

}  // namespace stoker::qwen_vl

#pragma once

#include <array>
#include <filesystem>

#include "base/result.h"
#include "model/qwen_vl/smart_resize.h"

namespace stoker::qwen_vl {

/// What a checkpoint's image processor config says, as far as preprocessing depends on it.
struct ProcessorConfig {
  int patch = 16;
  int merge = 2;
  int temporal_patch = 2;
  PixelLimits limits;
  std::array<double, 3> mean = {0.5, 0.5, 0.5};
  std::array<double, 3> std = {0.5, 0.5, 0.5};
  double rescale = 1.0 / 255.0;

  int factor() const { return patch * merge; }
};

/// Reads preprocessor_config.json in a checkpoint folder. `min_pixels` and `max_pixels` override `size`, whose "edges"
/// are pixel counts.
/// @return MODEL_FOLDER naming the file and the field that is missing or does not fit.
Result<ProcessorConfig> load_processor_config(const std::filesystem::path& folder);

}  // namespace stoker::qwen_vl

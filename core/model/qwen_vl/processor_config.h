#pragma once

#include <filesystem>
#include <optional>

#include "base/result.h"
#include "model/qwen_vl/family.h"
#include "plan/cost.h"

namespace stoker::qwen_vl {

/// Everything that a checkpoint folder's configs say and preprocessing depends on.
struct FolderConfig {
  ProcessorConfig image;
  ClipConfig clip;
  double tokens_per_second = 1;
  std::optional<CostModel> cost;  ///< of the model; nothing if config.json does not say how large it is
};

/// Reads them as transformers does, 4.57.3 and 5.18.0 alike; where a file is silent the class's default holds:
///
/// - images: "image_processor" of processor_config.json, else preprocessor_config.json;
/// - clips: "video_processor" of processor_config.json, else video_preprocessor_config.json, else
///   preprocessor_config.json, whose limits are then those of clips, too;
/// - `min_pixels` and `max_pixels` override `size`, whose "edges" are pixel counts;
/// - config.json, if there, must have the same patch sizes, and gives vision_config.tokens_per_second and the
///   cost. Without it the rate of the released checkpoints is taken.
///
/// @return MODEL_FOLDER naming the file, and the field that is missing or does not fit.
/// Source: transformers 5.18.0, image_processing_base.py and video_processing_utils.py, get_*_processor_dict.
Result<FolderConfig> load_folder_config(const std::filesystem::path& folder, const Family& family);

}  // namespace stoker::qwen_vl

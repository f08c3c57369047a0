#pragma once

#include <filesystem>
#include <span>

#include "base/result.h"
#include "model/qwen_vl/family.h"

namespace stoker {

/// Every model family that this build knows: the one list in which a new one is registered.
std::span<const qwen_vl::Family* const> model_families();

/// The family of a checkpoint folder: by `model_type` in config.json, else by `processor_class` in
/// processor_config.json, preprocessor_config.json or video_preprocessor_config.json.
/// @return MODEL_FOLDER: the folder does not exist, names no family, or one that is not known; the message lists both.
Result<const qwen_vl::Family*> family_of(const std::filesystem::path& folder);

}  // namespace stoker

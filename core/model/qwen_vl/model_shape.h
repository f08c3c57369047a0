#pragma once

#include <optional>

#include "model/json_fields.h"
#include "plan/cost.h"

namespace stoker::qwen_vl {

/// How large the model is that a config.json describes: Qwen2-VL, Qwen2.5-VL, Qwen3-VL and its mixtures of experts, as
/// transformers 4 and 5 save them (the text model's fields under "text_config" or at the top).
/// @return Nothing if a field that matters is missing or is no sensible number: nothing but the spread of work hangs on
/// it.
std::optional<ModelShape> read_shape(const JsonFields& config);

}  // namespace stoker::qwen_vl

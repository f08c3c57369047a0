#pragma once

#include "model/qwen_vl/family.h"

namespace stoker::qwen2_5_vl {

/// Qwen2.5-VL: Qwen2-VL whose positions count seconds inside a clip.
/// Source: transformers 5.18.0, models/qwen2_5_vl: processing_qwen2_5_vl.py (second_per_grid_ts),
/// modeling_qwen2_5_vl.py (get_rope_index), configuration_qwen2_5_vl.py (tokens_per_second); video processor of
/// models/qwen2_vl.
const qwen_vl::Family& family();

}  // namespace stoker::qwen2_5_vl

#pragma once

#include "model/qwen_vl/family.h"

namespace stoker::qwen2_vl {

/// Qwen2-VL: clips are one block of pads, their size is limited per frame, and t counts frames.
/// Source: transformers 5.18.0, models/qwen2_vl: video_processing_qwen2_vl.py (class defaults), modeling_qwen2_vl.py
/// (get_rope_index).
const qwen_vl::Family& family();

}  // namespace stoker::qwen2_vl

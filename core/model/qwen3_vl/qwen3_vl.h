#pragma once

#include "model/qwen_vl/family.h"

namespace stoker::qwen3_vl {

/// Qwen3-VL, dense and mixture of experts, and the later ones that use its processor: a clip's pixels are limited as a
/// whole, and its times stand in the text before each temporal patch, so that positions treat every one as an image.
/// Source: transformers 5.18.0, models/qwen3_vl: video_processing_qwen3_vl.py (class defaults, smart_resize,
/// sample_frames), processing_qwen3_vl.py (timestamps), modeling_qwen3_vl.py (get_rope_index).
const qwen_vl::Family& family();

}  // namespace stoker::qwen3_vl

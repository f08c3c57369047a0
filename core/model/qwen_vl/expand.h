#pragma once

#include <cstdint>
#include <span>

#include "model/qwen_vl/sample_text.h"

namespace stoker::qwen_vl {

/// Where one sample's token arrays go.
struct TokenSlots {
  std::int64_t* input_ids;
  std::int64_t* labels;
  std::int64_t* position_ids;        ///< row 0; the others follow at `position_stride`
  std::int64_t position_stride = 0;  ///< elements between rows
};

/// Tokens of a sample with its placeholders expanded.
std::int64_t expanded_length(const SampleText& text, std::span<const ImagePlan> images);

/// Writes ids, labels (-100 where not trained, never on a placeholder) and positions of one sample, its first at 0.
///
/// Position rows: the plain count, then M-RoPE t, h, w: a text token advances all three; an image of (grid_h, grid_w)
/// patches takes (cur, cur + y, cur + x) for merged cell (y, x) and then cur is one more than the largest.
/// @param images  As many as `text.n_images`, in reading order.
/// Source: transformers 5.18.0, models/qwen3_vl/modeling_qwen3_vl.py, get_rope_index; for images all Qwen-VL
/// generations agree.
void write_expanded(const SampleText& text, std::span<const ImagePlan> images, std::int32_t image_pad, int merge,
                    const TokenSlots& to);

}  // namespace stoker::qwen_vl

#pragma once

#include <cstdint>
#include <span>

#include "model/profile.h"
#include "model/qwen_vl/sample_text.h"

namespace stoker::qwen_vl {

/// Where one sample's token arrays go.
struct TokenSlots {
  std::int64_t* input_ids;
  std::int64_t* labels;
  std::int64_t* position_ids;        ///< row 0; the others follow at `position_stride`
  std::int64_t position_stride = 0;  ///< elements between rows
  float* loss_weights = nullptr;     ///< null: nobody asked for them
};

/// The media of a sample, each kind in reading order.
struct SampleMedia {
  std::span<const ImagePlan> images;
  std::span<const ClipPlan> clips;
};

/// How placeholders are expanded.
struct Expansion {
  std::int32_t image_pad = 0;
  std::int32_t video_pad = 0;
  int merge = 2;
  ClipPositions clip_positions = ClipPositions::kFractionalSeconds;
  bool has_time_in_positions = false;  ///< t advances by tokens_per_second inside a clip, else by 1 per patch
  double tokens_per_second = 1;
};

/// Where a sample's positions go on.
struct NextPosition {
  std::int64_t text = 0;
  std::int64_t mrope = 0;  ///< t, h and w alike
};

/// Tokens of a sample with its placeholders expanded. @param n_ids  Before that.
std::int64_t expanded_length(std::int64_t n_ids, const SampleMedia& media);
inline std::int64_t expanded_length(const SampleText& text, const SampleMedia& media) {
  return expanded_length(static_cast<std::int64_t>(text.ids.size()), media);
}

/// Writes ids, labels (-100 where not trained, never on a placeholder), positions of one sample, its first at 0, and
/// the weights of the labels (0 where there is none).
///
/// Position rows: the plain count, then M-RoPE t, h, w: a text token advances all three; an image of (grid_h, grid_w)
/// patches takes (cur, cur + y, cur + x) for merged cell (y, x) and then cur is one more than the largest. A video pad
/// that stands for one temporal patch is treated as an image; one that stands for a whole clip takes (cur + offset(i),
/// cur + y, cur + x) in temporal patch i, offsets and the next cur as ClipPositions says.
/// @param media  As many images as `text.n_images`; clips whose `n_pads` add up to `text.n_clip_pads`.
/// @return The positions of what would follow: the plain count, and M-RoPE.
/// Source: transformers 5.18.0 and 4.57.3, get_rope_index in models/qwen2_vl/modeling_qwen2_vl.py,
/// models/qwen2_5_vl/modeling_qwen2_5_vl.py, models/qwen3_vl/modeling_qwen3_vl.py.
NextPosition write_expanded(const SampleText& text, const SampleMedia& media, const Expansion& how,
                            const TokenSlots& to);

/// Writes `n` tokens that only fill up: no label, no weight, positions counting on from `next` as those of text do.
void write_filling(std::int64_t n, std::int32_t token_id, NextPosition next, const TokenSlots& to);

}  // namespace stoker::qwen_vl

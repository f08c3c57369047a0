#include "model/qwen_vl/expand.h"

#include <algorithm>
#include <cmath>

namespace stoker::qwen_vl {
namespace {

constexpr std::int64_t kIgnore = -100;

/// Writes tokens one after another into the slots.
class Writer {
 public:
  explicit Writer(const TokenSlots& to, NextPosition first = {})
      : to_(to), first_text_(first.text), next_(first.mrope) {}

  NextPosition next() const { return {first_text_ + n_, next_}; }

  /// @param weight  0: not trained.
  void text(std::int64_t id, float weight) {
    if (to_.loss_weights != nullptr) to_.loss_weights[n_] = weight;
    put(id, weight > 0 ? id : kIgnore, next_, next_, next_);
    ++next_;
  }
  void picture(std::int64_t pad, std::int64_t merged_h, std::int64_t merged_w) {
    frame(pad, 0, merged_h, merged_w);
    next_ += std::max(merged_h, merged_w);
  }
  void clip(const ClipPlan& plan, const Expansion& how) {
    const std::int64_t merged_h = plan.grid_h / how.merge;
    const std::int64_t merged_w = plan.grid_w / how.merge;
    std::int64_t last = 0;
    for (std::int64_t i = 0; i < plan.grid_t; ++i) {
      last = time_offset(i, plan, how);
      frame(how.video_pad, last, merged_h, merged_w);
    }
    const std::int64_t side = std::max(merged_h, merged_w);
    next_ += how.clip_positions == ClipPositions::kWholeSeconds ? std::max(side, last + 1) : side;
  }

 private:
  static std::int64_t time_offset(std::int64_t i, const ClipPlan& plan, const Expansion& how) {
    if (!how.has_time_in_positions) return i;
    if (how.clip_positions == ClipPositions::kWholeSeconds) {
      return static_cast<std::int64_t>(static_cast<double>(i * static_cast<std::int64_t>(plan.seconds_per_grid)) *
                                       how.tokens_per_second);
    }
    // An integer tensor times a Python float: both as float32.
    return static_cast<std::int64_t>(static_cast<float>(i) *
                                     static_cast<float>(how.tokens_per_second * plan.seconds_per_grid));
  }
  void frame(std::int64_t pad, std::int64_t t, std::int64_t merged_h, std::int64_t merged_w) {
    for (std::int64_t y = 0; y < merged_h; ++y) {
      for (std::int64_t x = 0; x < merged_w; ++x) {
        if (to_.loss_weights != nullptr) to_.loss_weights[n_] = 0;
        put(pad, kIgnore, next_ + t, next_ + y, next_ + x);
      }
    }
  }
  void put(std::int64_t id, std::int64_t label, std::int64_t t, std::int64_t h, std::int64_t w) {
    to_.input_ids[n_] = id;
    to_.labels[n_] = label;
    std::int64_t* const column = to_.position_ids + n_;
    column[0] = first_text_ + n_;
    column[to_.position_stride] = t;
    column[2 * to_.position_stride] = h;
    column[3 * to_.position_stride] = w;
    ++n_;
  }

  const TokenSlots to_;
  const std::int64_t first_text_;
  std::int64_t n_ = 0;
  std::int64_t next_;
};

}  // namespace

std::int64_t expanded_length(std::int64_t n_ids, const SampleMedia& media) {
  std::int64_t n = n_ids;
  for (const ImagePlan& image : media.images) n += image.n_tokens - 1;
  for (const ClipPlan& clip : media.clips) n += clip.n_tokens - clip.n_pads;
  return n;
}

NextPosition write_expanded(const SampleText& text, const SampleMedia& media, const Expansion& how,
                            const TokenSlots& to) {
  Writer writer(to);
  std::size_t image = 0;
  std::size_t clip = 0;
  std::int32_t pads_of_clip = 0;
  for (std::size_t i = 0; i < text.ids.size(); ++i) {
    if (text.ids[i] == how.image_pad && text.n_images > 0) {
      const ImagePlan& plan = media.images[image++];
      writer.picture(how.image_pad, plan.grid_h / how.merge, plan.grid_w / how.merge);
    } else if (text.ids[i] == how.video_pad && text.n_clip_pads > 0) {
      const ClipPlan& plan = media.clips[clip];
      if (plan.n_pads == 1 && plan.grid_t != 1) {
        writer.clip(plan, how);
      } else {
        writer.picture(how.video_pad, plan.grid_h / how.merge, plan.grid_w / how.merge);
      }
      if (++pads_of_clip == plan.n_pads) {
        ++clip;
        pads_of_clip = 0;
      }
    } else {
      writer.text(text.ids[i], text.is_trained[i] == 0 ? 0 : text.loss_weights.empty() ? 1 : text.loss_weights[i]);
    }
  }
  return writer.next();
}

void write_filling(std::int64_t n, std::int32_t token_id, NextPosition next, const TokenSlots& to) {
  Writer writer(to, next);
  for (std::int64_t i = 0; i < n; ++i) writer.text(token_id, 0);
}

}  // namespace stoker::qwen_vl

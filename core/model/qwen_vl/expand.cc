#include "model/qwen_vl/expand.h"

#include <algorithm>

namespace stoker::qwen_vl {
namespace {

constexpr std::int64_t kIgnore = -100;

/// Writes tokens one after another into the slots.
class Writer {
 public:
  explicit Writer(const TokenSlots& to) : to_(to) {}

  void text(std::int64_t id, bool is_trained) {
    put(id, is_trained ? id : kIgnore, next_, next_, next_);
    ++next_;
  }
  void image(std::int64_t pad, std::int64_t merged_h, std::int64_t merged_w) {
    for (std::int64_t y = 0; y < merged_h; ++y) {
      for (std::int64_t x = 0; x < merged_w; ++x) put(pad, kIgnore, next_, next_ + y, next_ + x);
    }
    next_ += std::max(merged_h, merged_w);
  }

 private:
  void put(std::int64_t id, std::int64_t label, std::int64_t t, std::int64_t h, std::int64_t w) {
    to_.input_ids[n_] = id;
    to_.labels[n_] = label;
    std::int64_t* const column = to_.position_ids + n_;
    column[0] = n_;
    column[to_.position_stride] = t;
    column[2 * to_.position_stride] = h;
    column[3 * to_.position_stride] = w;
    ++n_;
  }

  const TokenSlots to_;
  std::int64_t n_ = 0;
  std::int64_t next_ = 0;
};

}  // namespace

std::int64_t expanded_length(const SampleText& text, std::span<const ImagePlan> images) {
  auto n = static_cast<std::int64_t>(text.ids.size());
  for (const ImagePlan& image : images) n += image.n_tokens - 1;
  return n;
}

void write_expanded(const SampleText& text, std::span<const ImagePlan> images, std::int32_t image_pad, int merge,
                    const TokenSlots& to) {
  Writer writer(to);
  std::size_t image = 0;
  for (std::size_t i = 0; i < text.ids.size(); ++i) {
    if (text.ids[i] == image_pad) {
      writer.image(image_pad, images[image].grid_h / merge, images[image].grid_w / merge);
      ++image;
    } else {
      writer.text(text.ids[i], text.is_trained[i] != 0);
    }
  }
}

}  // namespace stoker::qwen_vl

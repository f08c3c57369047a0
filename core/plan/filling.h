#pragma once

#include <algorithm>
#include <cstdint>

#include "plan/padding.h"
#include "plan/plan.h"

namespace stoker {

/// A pack while it is filled: whether one more sample fits. For every form.
class Filling {
 public:
  bool takes(const PackSettings& settings, const PlanSample& sample) const {
    Filling with = *this;
    with.add(settings, sample);
    return with.fits(settings);
  }
  void add(const PackSettings& settings, const PlanSample& sample) {
    ++n_samples_;
    aligned_ += aligned_tokens(settings, sample.tokens);
    longest_ = std::max(longest_, sample.tokens);
    images_ += sample.images;
    videos_ += sample.videos;
    patches_ += sample.patches;
  }
  /// Within all limits, with room for the dummy that it would need as it is.
  bool fits(const PackSettings& settings) const {
    if (settings.max_images > 0 && images_ + videos_ > settings.max_images) return false;
    if (settings.max_patches > 0 && patches_ > settings.max_patches) return false;
    if (settings.form == PackForm::kPacked) return aligned_ <= room_for_samples(settings);
    if (settings.form == PackForm::kSamples) return n_samples_ <= settings.samples_per_pack;
    const std::int64_t n_rows = n_samples_ + (missing_vision(settings, images_, videos_).any() ? 1 : 0);
    return n_rows * row_tokens(settings, longest_) <= settings.tokens_per_pack;
  }
  /// No further sample can fit, however short.
  bool is_full(const PackSettings& settings) const {
    if (settings.form == PackForm::kPacked) return aligned_ + settings.align_samples_to > room_for_samples(settings);
    if (settings.form == PackForm::kSamples) return n_samples_ >= settings.samples_per_pack;
    return (n_samples_ + 1) * row_tokens(settings, longest_) > settings.tokens_per_pack;
  }
  std::int64_t n_samples() const { return n_samples_; }
  std::int64_t longest() const { return longest_; }
  std::int64_t images() const { return images_; }
  std::int64_t videos() const { return videos_; }

 private:
  std::int64_t n_samples_ = 0, aligned_ = 0, longest_ = 0, images_ = 0, videos_ = 0, patches_ = 0;
};

}  // namespace stoker

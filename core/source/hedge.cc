#include "source/hedge.h"

#include <algorithm>
#include <cmath>

namespace stoker {

void HedgePolicy::answered(Nanos first_byte) {
  if (share_ <= 0) return;
  const double us = std::max(1.0, static_cast<double>(first_byte.count()) / 1e3);
  const auto bucket = std::min(weights_.size() - 1, static_cast<std::size_t>(std::log2(us) * kPerOctave));
  weights_[bucket] += newest_;
  total_ += newest_;
  newest_ *= std::exp2(1 / kHalfLife);
  if (++n_answers_ < kLeastAnswers || n_answers_ % kAnswersPerLook != 0) return;

  double later = 0;
  std::size_t at = weights_.size();
  while (at > 0 && later + weights_[at - 1] <= share_ / 2 * total_) later += weights_[--at];
  // The upper end of the bucket in which the share is reached.
  delay_ =
      std::max(kLeastDelay, Nanos(static_cast<std::int64_t>(std::exp2(static_cast<double>(at) / kPerOctave) * 1e3)));
  if (newest_ > 1e100) {
    for (double& weight : weights_) weight /= newest_;
    total_ /= newest_;
    newest_ = 1;
  }
}

bool HedgePolicy::take() {
  if (static_cast<double>(n_hedged_ + 1) > share_ * static_cast<double>(n_answers_)) return false;
  ++n_hedged_;
  return true;
}

bool Race::finish(bool is_final) {
  MutexLock lock(mu_);
  --n_running_;
  if (is_over_ || (!is_final && n_running_ > 0)) return false;
  is_over_ = true;
  return true;
}

bool Race::leave() {
  MutexLock lock(mu_);
  if (!is_over_ && n_running_ < 2) return false;
  --n_running_;
  return true;
}

bool Race::is_over() const {
  MutexLock lock(mu_);
  return is_over_;
}

}  // namespace stoker

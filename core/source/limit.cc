#include "source/limit.h"

namespace stoker {
namespace {

// What a request costs a store beside its bytes, in bytes: ten small objects are more work than one of their size.
constexpr double kBytesPerRequest = 32 * 1024;
constexpr int kLeastAnswers = 32;

}  // namespace

void ThrottleLimit::succeeded() {
  if (level_ >= maximum_) return;
  level_ = std::min<double>(maximum_, level_ + std::max(1.0, level_ / 32) / std::max(1.0, level_));
}

bool ThrottleLimit::throttled(Nanos now, int n_in_flight) {
  if (fell_at_ && now - *fell_at_ < kCalm) return false;
  fell_at_ = now;
  level_ = std::max<double>(std::min(kFloor, maximum_), std::min<double>(level_, n_in_flight) * 2 / 3);
  return true;
}

void ThrottleLimit::set_maximum(int maximum) {
  // A throttled level stays where the store put it; an unthrottled one follows.
  level_ = level_ >= maximum_ ? maximum : std::min<double>(level_, maximum);
  maximum_ = maximum;
}

void GrowingLimit::start_round(Nanos now, int n_ignored) {
  round_began_ = now;
  n_ignored_ = n_ignored;
  n_answers_ = 0;
  work_ = 0;
}

void GrowingLimit::answered(Nanos now, std::uint64_t n_bytes, bool is_binding) {
  if ((level_ >= maximum_ && !rate_before_) || now < pause_until_) return;
  if (!is_binding || n_ignored_ > 0) return start_round(now, n_ignored_ - static_cast<int>(is_binding));
  ++n_answers_;
  work_ += static_cast<double>(n_bytes) + kBytesPerRequest;
  if (n_answers_ < std::max(level_, kLeastAnswers) || now < round_began_ + kLeastRound) return;
  judge(now, work_ / to_seconds(now - round_began_));
}

void GrowingLimit::judge(Nanos now, double rate) {
  start_round(now, 0);
  if (rate_before_) {
    const double growth = static_cast<double>(level_) / level_before_ - 1;
    if (rate < *rate_before_ * (1 + kLeastGain * growth)) {
      level_ = level_before_;
      rate_before_.reset();
      pause_until_ = now + kPause;
      return;
    }
  }
  if (level_ >= maximum_) {
    rate_before_.reset();
    return;
  }
  rate_before_ = rate;
  level_before_ = level_;
  level_ = static_cast<int>(std::min<std::int64_t>(std::int64_t{level_} * 2, maximum_));
  start_round(now, level_);
}

void GrowingLimit::throttled(Nanos now) {
  if (rate_before_) level_ = level_before_;
  rate_before_.reset();
  start_round(now, level_);
  pause_until_ = now + kPause;
}

void GrowingLimit::set(int limit) {
  level_ = maximum_ = limit;
  rate_before_.reset();
}

}  // namespace stoker

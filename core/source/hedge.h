#pragma once

#include <array>
#include <cstdint>

#include "base/clock.h"
#include "base/mutex.h"

namespace stoker {

/// Decides when a request without an answer is asked a second time: later than all but half of `share` of the answers
/// came lately, and for at most `share` of all requests. The other half is for bad moments: were it spent on the merely
/// slow, the one that is stuck would find nothing left. Not thread-safe.
class HedgePolicy {
 public:
  /// Fewer answers say nothing about a tail.
  static constexpr int kLeastAnswers = 128;
  /// A server on the same machine answers in less; there a second request would only compete with the first.
  static constexpr Nanos kLeastDelay = std::chrono::milliseconds(5);

  /// @param share in [0, 1]; 0: never.
  explicit HedgePolicy(double share) : share_(share) {}

  /// The time to the first byte; of a request that was given up, the time that it was waited for.
  void answered(Nanos first_byte);
  /// How long to wait for a first byte before asking again; Nanos::max(): do not ask.
  Nanos delay() const { return delay_; }
  /// Takes one second request from the allowance, if there is one.
  bool take();

 private:
  static constexpr int kPerOctave = 8;
  static constexpr int kAnswersPerLook = 64;
  // So many answers count half as much as the latest: storage has better and worse minutes.
  static constexpr double kHalfLife = 4096;

  const double share_;
  std::int64_t n_hedged_ = 0, n_answers_ = 0;
  std::array<double, 40 * kPerOctave> weights_{};  // by latency, from a microsecond up
  double newest_ = 1;                              // the weight of the next answer; older ones count less beside it
  double total_ = 0;
  Nanos delay_ = Nanos::max();
};

/// Two requests for the same bytes, of which the first final answer counts. Threads: any.
class Race {
 public:
  /// A runner ends with an answer. True: it is the one that counts. An answer that is not `is_final` (the request was
  /// stopped) counts only if the other runner is gone.
  bool finish(bool is_final) STOKER_EXCLUDES(mu_);
  /// A runner failed and would try again. True: the other is still under way, or has won, and this one is done.
  bool leave() STOKER_EXCLUDES(mu_);
  /// The answer is there: whoever still runs is not wanted any more.
  bool is_over() const STOKER_EXCLUDES(mu_);

 private:
  mutable Mutex mu_;
  int n_running_ STOKER_GUARDED_BY(mu_) = 2;
  bool is_over_ STOKER_GUARDED_BY(mu_) = false;
};

}  // namespace stoker

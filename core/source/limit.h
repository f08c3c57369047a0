#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "base/clock.h"

namespace stoker {

/// How many requests one prefix of a store takes at one time: as many as there are, until it throttles. Then two thirds
/// of what was in flight, at most once per `kCalm` (one burst of refusals is one message), and back up by a
/// thirty-second for every round of successes. Not thread-safe.
class ThrottleLimit {
 public:
  static constexpr int kFloor = 2;
  static constexpr Nanos kCalm = std::chrono::milliseconds(200);

  explicit ThrottleLimit(int maximum) : maximum_(maximum), level_(maximum) {}

  void succeeded();
  /// @param n_in_flight  when the answer came, its own request included
  /// @return false within `kCalm` of the last time
  bool throttled(Nanos now, int n_in_flight);
  void set_maximum(int maximum);
  int get() const { return std::clamp(static_cast<int>(level_), std::min(kFloor, maximum_), maximum_); }

 private:
  int maximum_;
  double level_;
  std::optional<Nanos> fell_at_;
};

/// How many requests all of the network is asked at one time: doubled while the storage then gives more in the same
/// time, and taken back by one doubling where it does not: more in flight would only wait longer. Tried again after
/// `kPause`. Learns only while the limit keeps requests waiting, and that for `kLeastRound` at a stretch: what a burst
/// asks for, such as a run's first steps, comes soonest if it comes in the plan's order. Not thread-safe.
class GrowingLimit {
 public:
  /// Of the rate, for twice the requests; measured over as many answers as are in flight, it is well beyond their
  /// noise.
  static constexpr double kLeastGain = 0.2;
  static constexpr Nanos kPause = std::chrono::seconds(10);
  static constexpr Nanos kLeastRound = std::chrono::seconds(1);

  GrowingLimit(int start, int maximum)
      : level_(std::min(start, maximum)), maximum_(maximum), n_ignored_(std::min(start, maximum)) {}

  /// @param is_binding  the limit kept another request waiting while this one was under way
  void answered(Nanos now, std::uint64_t n_bytes, bool is_binding);
  /// The storage asked to slow down: no time for trying more.
  void throttled(Nanos now);
  /// From now on just this.
  void set(int limit);
  int get() const { return level_; }

 private:
  void start_round(Nanos now, int n_ignored);
  void judge(Nanos now, double rate);

  int level_;
  int maximum_;
  int level_before_ = 0;  // the last doubling
  std::optional<double> rate_before_;
  Nanos pause_until_{0};

  int n_ignored_;  // answers to requests from before this level
  int n_answers_ = 0;
  double work_ = 0;
  Nanos round_began_{0};  // with the answer before its first, or bursts would look endlessly fast
};

}  // namespace stoker

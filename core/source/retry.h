#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/rng.h"
#include "source/source.h"

namespace stoker {

/// The wait before try `n_failures` + 1 of one request: full jitter under an exponential cap, at least `retry_after`.
/// Pure.
Nanos backoff(const FetchRetry& retry, int n_failures, std::optional<Nanos> retry_after, Rng& rng);

/// How many requests a store takes at one time: falls to two thirds when it throttles, at most once per `kCalm` (one
/// burst of refusals is one message), and climbs back by one thirty-second of the maximum for every round of successes.
/// Not thread-safe.
class AdaptiveLimit {
 public:
  static constexpr int kFloor = 2;
  static constexpr Nanos kCalm = std::chrono::milliseconds(200);

  explicit AdaptiveLimit(int maximum) : maximum_(maximum), level_(maximum) {}

  void succeeded();
  void throttled(Nanos now);
  void set_maximum(int maximum);
  int get() const { return std::clamp(static_cast<int>(level_), std::min(kFloor, maximum_), maximum_); }

 private:
  int maximum_;
  double level_;
  std::optional<Nanos> fell_at_;
};

/// Decides when a line about unreachable storage is due: only if nothing has worked for a while, not more often than
/// people can read, and one when it is back. Not thread-safe.
class StoreWatch {
 public:
  static constexpr Nanos kPatience = std::chrono::seconds(2);
  static constexpr Nanos kInterval = std::chrono::seconds(5);

  /// @return the line to log, or empty.
  std::string failed(Nanos now, const Status& why, std::string_view url, double outage_limit_s);
  std::string succeeded(Nanos now);

  bool ever_succeeded() const { return ever_succeeded_; }

 private:
  bool ever_succeeded_ = false;
  std::optional<Nanos> failing_since_;
  std::optional<Nanos> told_at_;
  std::int64_t n_failures_ = 0;
};

}  // namespace stoker

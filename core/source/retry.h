#pragma once

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

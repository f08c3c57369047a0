#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace stoker {

using Nanos = std::chrono::nanoseconds;

/// Where time comes from, so that tests can hold it still. Threads: any.
class Clock {
 public:
  virtual ~Clock() = default;
  /// Monotonic; the zero point is unspecified.
  virtual Nanos now() const = 0;

  static const Clock& real();  ///< std::chrono::steady_clock.
};

/// A clock that moves only when told. Threads: any.
class FakeClock final : public Clock {
 public:
  Nanos now() const override { return Nanos(now_ns_.load()); }
  void advance(Nanos by) { now_ns_ += by.count(); }

 private:
  std::atomic<std::int64_t> now_ns_{0};
};

inline double to_seconds(Nanos t) { return std::chrono::duration<double>(t).count(); }

}  // namespace stoker

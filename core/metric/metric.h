#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.h"

namespace stoker {

/// A count that only grows. Writers: any thread, relaxed. Hot loops batch their updates.
class Counter {
 public:
  void add(std::int64_t n) { value_.fetch_add(n, std::memory_order_relaxed); }
  std::int64_t get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::int64_t> value_{0};
};

/// The busy, input-wait and output-wait time of one stage, summed over its threads, and how many items it finished.
struct StageClock {
  Counter busy_ns;
  Counter wait_in_ns;   ///< blocked because nothing came in
  Counter wait_out_ns;  ///< blocked because the next stage, or memory, had no room
  Counter items;
};

/// Adds the time between construction and destruction to a counter.
class Timed {
 public:
  Timed(Counter& to, const Clock& clock) : to_(to), clock_(clock), start_(clock.now()) {}
  ~Timed() { to_.add((clock_.now() - start_).count()); }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  Counter& to_;
  const Clock& clock_;
  Nanos start_;
};

/// How full a bounded queue is, on average over time: the integral of its length. Called under the queue's own lock.
class Occupancy {
 public:
  void changed(std::int64_t new_length, Nanos now) {
    if (since_.count() == 0) since_ = last_ = now;
    integral_.fetch_add(length_ * (now - last_).count(), std::memory_order_relaxed);
    last_ = now;
    length_ = new_length;
  }
  /// Item-nanoseconds so far.
  std::int64_t integral() const { return integral_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::int64_t> integral_{0};
  std::int64_t length_ = 0;
  Nanos last_{0};
  Nanos since_{0};
};

}  // namespace stoker

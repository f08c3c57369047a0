#pragma once

#include <cstdint>

#include "base/clock.h"

namespace stoker {

/// Sums over whole steps. The first step after the start (cold start, resume) is kept apart.
struct WaitTotals {
  std::int64_t n_steps = 0;  ///< measured: whole steps after the first
  double wait_s = 0;         ///< in them, the trainer blocked in next(), and what it adds itself
  double step_s = 0;         ///< in them, from asking for the first micro-batch to asking for the next step's first
  double first_wait_s = 0;   ///< of the first step: the cold start
  double first_step_s = 0;
  double longest_wait_s = 0;  ///< of a single step after the first

  double wait_ratio() const { return step_s > 0 ? wait_s / step_s : 0; }
};

/// Measures how long the trainer is blocked. Costs two clock reads per batch. Threads: the trainer's.
class WaitMeter {
 public:
  void next_begins(bool is_step_start, Nanos now);
  void next_ends(Nanos now);
  /// Time the trainer waited outside next(), such as a copy to the device that nothing hides.
  void add_wait(Nanos waited) { in_step_ += waited; }
  const WaitTotals& totals() const { return totals_; }

 private:
  WaitTotals totals_;
  bool is_running_ = false;
  bool is_first_ = true;
  Nanos step_began_{0};
  Nanos next_began_{0};
  Nanos in_step_{0};
};

}  // namespace stoker

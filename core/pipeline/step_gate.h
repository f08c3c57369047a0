#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <stop_token>

#include "base/mutex.h"

namespace stoker {

/// Says how far ahead of the trainer work may run: up to `prefetch_steps` steps past the one it asks for. Threads: any.
class StepGate {
 public:
  StepGate(std::int64_t first_step, int prefetch_steps) : prefetch_steps_(prefetch_steps), wanted_(first_step - 1) {}

  /// The trainer asks for this step now. Never goes back.
  void want(std::int64_t step) STOKER_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (step > wanted_) wanted_ = step;
    changed_.notify_all();
  }
  /// Waits until `step` may be worked on. @return false once `stop` is requested.
  bool pass(std::int64_t step, std::stop_token stop) STOKER_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    return changed_.wait(lock, stop, [&]() STOKER_NO_ANALYSIS { return step <= wanted_ + prefetch_steps_; });
  }
  /// The same for so long at most. @return Whether it may.
  bool pass_within(std::int64_t step, std::chrono::milliseconds timeout, std::stop_token stop) STOKER_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    return changed_.wait_for(lock, stop, timeout,
                             [&]() STOKER_NO_ANALYSIS { return step <= wanted_ + prefetch_steps_; });
  }
  int prefetch_steps() const { return prefetch_steps_; }

 private:
  const int prefetch_steps_;

  Mutex mu_;
  std::condition_variable_any changed_;
  std::int64_t wanted_ STOKER_GUARDED_BY(mu_);
};

}  // namespace stoker

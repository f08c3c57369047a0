#include "pipeline/wait_meter.h"

#include <algorithm>

namespace stoker {

void WaitMeter::next_begins(bool is_step_start, Nanos now) {
  if (is_step_start) {
    if (is_running_) {
      const double step = to_seconds(now - step_began_);
      const double wait = to_seconds(in_step_);
      if (is_first_) {
        totals_.first_step_s = step;
        totals_.first_wait_s = wait;
      } else {
        ++totals_.n_steps;
        totals_.step_s += step;
        totals_.wait_s += wait;
        totals_.longest_wait_s = std::max(totals_.longest_wait_s, wait);
      }
      is_first_ = false;
    }
    is_running_ = true;
    step_began_ = now;
    in_step_ = Nanos{0};
  }
  next_began_ = now;
}

void WaitMeter::next_ends(Nanos now) {
  in_step_ += now - next_began_;
  if (is_first_) totals_.first_wait_s = to_seconds(in_step_);  // visible before the step is over
}

}  // namespace stoker

#include "base/clock.h"

namespace stoker {
namespace {

class SteadyClock final : public Clock {
 public:
  Nanos now() const override { return std::chrono::steady_clock::now().time_since_epoch(); }
};

}  // namespace

const Clock& Clock::real() {
  static const SteadyClock clock;
  return clock;
}

}  // namespace stoker

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "pipeline/ledger.h"
#include "pipeline/step_gate.h"
#include "pipeline/wait_meter.h"

namespace stoker {
namespace {

using std::chrono::milliseconds;

TEST(StepGate, LetsWorkRunAheadSoFarAndNoFurther) {
  StepGate gate(5, 2);
  std::stop_source stop;
  EXPECT_TRUE(gate.pass(6, stop.get_token()));  // nothing asked for yet: one step fewer ahead
  std::atomic<int> n_passed{0};
  std::latch waiting(2);
  std::jthread seventh([&] {
    waiting.count_down();
    n_passed += gate.pass(7, stop.get_token()) ? 1 : 0;
  });
  std::jthread tenth([&] {
    waiting.count_down();
    n_passed += gate.pass(10, stop.get_token()) ? 100 : 0;
  });
  waiting.wait();
  EXPECT_EQ(n_passed, 0);
  gate.want(5);
  seventh.join();
  gate.want(4);  // never goes back
  EXPECT_TRUE(gate.pass(7, stop.get_token()));
  EXPECT_EQ(n_passed, 1);
  stop.request_stop();
  tenth.join();
  EXPECT_EQ(n_passed, 1);
}

TEST(WaitMeter, CountsWholeStepsAndKeepsTheColdStartApart) {
  FakeClock clock;
  WaitMeter meter;
  auto next = [&](bool is_step_start, int wait_ms) {
    meter.next_begins(is_step_start, clock.now());
    clock.advance(milliseconds(wait_ms));
    meter.next_ends(clock.now());
  };
  next(true, 5000);
  EXPECT_DOUBLE_EQ(meter.totals().first_wait_s, 5.0);  // visible at once
  clock.advance(milliseconds(100));
  next(false, 10);
  clock.advance(milliseconds(100));
  EXPECT_EQ(meter.totals().n_steps, 0);
  for (int step = 0; step < 3; ++step) {  // two micro-batches: 1 + 3 ms of waiting, 2 x 98 ms of work
    next(true, 1);
    clock.advance(milliseconds(98));
    next(false, 3);
    clock.advance(milliseconds(98));
  }
  EXPECT_EQ(meter.totals().n_steps, 2);  // the last is not over before the next one begins
  next(true, 0);
  EXPECT_EQ(meter.totals().n_steps, 3);
  EXPECT_DOUBLE_EQ(meter.totals().first_wait_s, 5.01);
  EXPECT_DOUBLE_EQ(meter.totals().first_step_s, 5.21);
  EXPECT_NEAR(meter.totals().wait_s, 0.012, 1e-12);
  EXPECT_NEAR(meter.totals().step_s, 0.6, 1e-12);
  EXPECT_NEAR(meter.totals().wait_ratio(), 0.02, 1e-12);
  EXPECT_NEAR(meter.totals().longest_wait_s, 0.004, 1e-12);
}

TEST(WaitMeter, AddsWhatTheTrainerWaitedElsewhere) {
  FakeClock clock;
  WaitMeter meter;
  for (int step = 0; step < 3; ++step) {
    meter.next_begins(true, clock.now());
    meter.next_ends(clock.now());
    meter.add_wait(milliseconds(25));
    clock.advance(milliseconds(100));
  }
  EXPECT_EQ(meter.totals().n_steps, 1);
  EXPECT_NEAR(meter.totals().wait_ratio(), 0.25, 1e-12);
}

TEST(Ledger, QuotesWhateverComes) {
  EXPECT_EQ(json_quoted("a \"b\" \\c"), R"("a \"b\" \\c")");
  EXPECT_EQ(json_quoted("tab\t, line\n, nul" + std::string(1, '\0')), "\"tab\\u0009, line\\u000a, nul\\u0000\"");
  EXPECT_EQ(json_quoted("\xE5\x9B\xBE"), "\"\xE5\x9B\xBE\"");
  EXPECT_EQ(json_quoted("\xFF|\xE5\x9B"), "\"\xEF\xBF\xBD|\xEF\xBF\xBD\"");
}

}  // namespace
}  // namespace stoker

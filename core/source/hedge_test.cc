#include "source/hedge.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace stoker {
namespace {

Nanos ms(double n) { return Nanos(static_cast<std::int64_t>(n * 1e6)); }

TEST(HedgePolicy, WaitsLongerThanAllButHalfItsShare) {
  HedgePolicy policy(0.02);
  std::mt19937_64 rng(1);
  std::lognormal_distribution<double> latency_ms(std::log(30.0), 0.6);
  std::vector<double> seen;
  for (int i = 0; i < 20'000; ++i) {
    seen.push_back(latency_ms(rng));
    policy.answered(ms(seen.back()));
  }
  const auto later = std::count_if(seen.begin(), seen.end(), [&](double one) { return ms(one) > policy.delay(); });
  EXPECT_LE(later, 20'000 * 0.011);
  EXPECT_GE(later, 20'000 * 0.006);  // buckets are 9 % wide
}

TEST(HedgePolicy, ForgetsWorseTimes) {
  HedgePolicy policy(0.02);
  for (int i = 0; i < 10'000; ++i) policy.answered(ms(400));
  EXPECT_GE(policy.delay(), ms(400));
  for (int i = 0; i < 60'000; ++i) policy.answered(ms(20));
  EXPECT_LT(policy.delay(), ms(25));
}

TEST(HedgePolicy, NeverSpendsMoreThanItsShare) {
  HedgePolicy policy(0.02);
  int n_taken = 0;
  for (int i = 1; i <= 5000; ++i) {
    policy.answered(ms(30));
    n_taken += policy.take() ? 1 : 0;
    ASSERT_LE(n_taken, i * 0.02);
  }
  EXPECT_EQ(n_taken, 100);
}

TEST(HedgePolicy, KnowsNothingAtFirstAndNothingWhenOff) {
  HedgePolicy policy(0.02), off(0);
  EXPECT_EQ(policy.delay(), Nanos::max());
  for (int i = 0; i < HedgePolicy::kLeastAnswers - 1; ++i) policy.answered(ms(30));
  EXPECT_EQ(policy.delay(), Nanos::max());
  for (int i = 0; i < 1000; ++i) off.answered(ms(30));
  EXPECT_EQ(off.delay(), Nanos::max());
  EXPECT_FALSE(off.take());
}

TEST(HedgePolicy, IsNeverHasty) {
  HedgePolicy policy(0.02);
  for (int i = 0; i < 1000; ++i) policy.answered(Nanos(50'000));
  EXPECT_EQ(policy.delay(), HedgePolicy::kLeastDelay);
}

TEST(Race, OneAnswerCounts) {
  Race won;
  EXPECT_TRUE(won.finish(true));
  EXPECT_TRUE(won.is_over());
  EXPECT_FALSE(won.finish(true));

  Race stopped;  // the first to be stopped leaves the answer to the other
  EXPECT_FALSE(stopped.finish(false));
  EXPECT_FALSE(stopped.is_over());
  EXPECT_TRUE(stopped.finish(false));

  Race failing;  // the last one has to go on
  EXPECT_TRUE(failing.leave());
  EXPECT_FALSE(failing.leave());

  Race late;  // a failure behind the answer asks for nothing
  EXPECT_TRUE(late.finish(true));
  EXPECT_TRUE(late.leave());
}

}  // namespace
}  // namespace stoker

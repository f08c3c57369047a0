#include "source/limit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <queue>

#include "base/rng.h"

namespace stoker {
namespace {

using namespace std::chrono_literals;

TEST(ThrottleLimit, OneBurstIsOneMessageAndItRecovers) {
  ThrottleLimit limit(64);
  EXPECT_EQ(limit.get(), 64);
  EXPECT_TRUE(limit.throttled(Nanos(1s), 64));
  for (int i = 0; i < 64; ++i) EXPECT_FALSE(limit.throttled(Nanos(1s), 64));
  EXPECT_EQ(limit.get(), 42);
  for (int i = 1; i < 100; ++i) limit.throttled(Nanos(1s) + i * ThrottleLimit::kCalm, 64);
  EXPECT_EQ(limit.get(), ThrottleLimit::kFloor);
  int n = 0;
  for (int last = limit.get(); limit.get() < 64; ++n) {
    limit.succeeded();
    ASSERT_GE(limit.get(), last);
    last = limit.get();
  }
  // One more for every round of successes up to 32, then a thirty-second more: 30 rounds of 17 and 23 of 46.
  EXPECT_GT(n, 1000);
  EXPECT_LT(n, 2000);
}

TEST(ThrottleLimit, StartsFromWhatWasInFlight) {
  ThrottleLimit limit(4096);
  limit.throttled(Nanos(1s), 90);
  EXPECT_EQ(limit.get(), 60) << "4,096 were allowed, but 90 were too many";
}

TEST(ThrottleLimit, AMaximumBelowTheFloorHolds) {
  ThrottleLimit limit(1);
  limit.throttled(Nanos(1s), 1);
  EXPECT_EQ(limit.get(), 1);
  limit.set_maximum(10);
  EXPECT_EQ(limit.get(), 10);
  limit.throttled(Nanos(9s), 10);
  EXPECT_EQ(limit.get(), 6);
  limit.set_maximum(100);
  EXPECT_EQ(limit.get(), 6);
  limit.set_maximum(3);
  EXPECT_EQ(limit.get(), 3);
}

// A storage whose answers take lognormal times around 30 ms, of which it works on `width` at one time, asked by as many
// as the limit allows. Returns the limit after `n` answers.
int after(GrowingLimit& limit, int width, int n, std::uint64_t seed, bool is_binding = true) {
  Rng rng(seed);
  double now_s = 1;
  std::priority_queue<double, std::vector<double>, std::greater<>> ends;  // of requests in flight
  std::vector<double> free_at(static_cast<std::size_t>(width), 0);        // heap: when each place is free
  const auto later = std::greater<>();
  for (int answered = 0; answered < n; ++answered) {
    while (static_cast<int>(ends.size()) < limit.get()) {
      const double normal = std::sqrt(-2 * std::log(1 - rng.uniform())) * std::cos(6.283185307 * rng.uniform());
      std::pop_heap(free_at.begin(), free_at.end(), later);
      const double end = std::max(now_s, free_at.back()) + 0.03 * std::exp(0.6 * normal);
      free_at.back() = end;
      std::push_heap(free_at.begin(), free_at.end(), later);
      ends.push(end);
    }
    now_s = ends.top();
    ends.pop();
    limit.answered(Nanos(static_cast<std::int64_t>(now_s * 1e9)), 100'000, is_binding);
  }
  return limit.get();
}

TEST(GrowingLimit, GrowsWhileThatBringsMore) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    GrowingLimit wide(64, 1024);
    EXPECT_EQ(after(wide, 100'000, 40'000, seed), 1024) << seed;
    GrowingLimit narrow(64, 1024);
    const int found = after(narrow, 150, 80'000, seed);  // 19 s: two looks
    EXPECT_GE(found, 128) << seed;
    EXPECT_LE(found, 256) << seed;
    GrowingLimit enough(64, 1024);
    EXPECT_LE(after(enough, 40, 20'000, seed), 128) << seed;
  }
}

TEST(GrowingLimit, LearnsOnlyWhereItIsInTheWay) {
  GrowingLimit limit(64, 1024);
  EXPECT_EQ(after(limit, 100'000, 6000, 1, false), 64);
}

TEST(GrowingLimit, ABurstIsNoReasonToGrow) {
  GrowingLimit limit(64, 1024);
  for (std::uint64_t burst = 0; burst < 50; ++burst) {
    EXPECT_EQ(after(limit, 100'000, 1280, burst), 64);  // 0.7 s
    limit.answered(Nanos(1s), 1, false);                // then nothing waits
  }
}

TEST(GrowingLimit, DoesNotGrowWhileTheStorageAsksToSlowDown) {
  GrowingLimit limit(64, 1024);
  limit.throttled(Nanos(1s));
  EXPECT_EQ(after(limit, 100'000, 6000, 1), 64) << "three seconds";
}

TEST(GrowingLimit, AnOrderHolds) {
  GrowingLimit limit(64, 1024);
  limit.set(7);
  EXPECT_EQ(after(limit, 100'000, 6000, 1), 7);
  GrowingLimit fixed(64, 64);
  EXPECT_EQ(after(fixed, 100'000, 6000, 1), 64);
}

}  // namespace
}  // namespace stoker

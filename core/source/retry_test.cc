#include "source/retry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace stoker {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

TEST(Backoff, IsUniformUnderAGrowingCeiling) {
  const FetchRetry retry{100ms, 10'000ms};
  Rng rng(1);
  for (int n = 1; n <= 40; ++n) {
    const Nanos ceiling = n <= 7 ? Nanos(100ms) * (1 << (n - 1)) : Nanos(10s);
    Nanos sum{0};
    Nanos largest{0};
    for (int i = 0; i < 2000; ++i) {
      const Nanos wait = backoff(retry, n, std::nullopt, rng);
      ASSERT_LT(wait, ceiling);
      ASSERT_GE(wait, 0ns);
      sum += wait;
      largest = std::max(largest, wait);
    }
    EXPECT_NEAR(to_seconds(sum) / 2000, to_seconds(ceiling) / 2, to_seconds(ceiling) * 0.03)
        << n;  // 4.6 standard errors
    EXPECT_GT(largest, ceiling * 98 / 100) << n;
  }
}

TEST(Backoff, IsNeverBelowWhatTheStoreAsksFor) {
  Rng rng(2);
  for (int i = 0; i < 100; ++i) EXPECT_GE(backoff({100ms, 10'000ms}, 1, 3s, rng), 3s);
}

TEST(StoreWatch, SpeaksRarelyAndOnceWhenItIsOver) {
  StoreWatch watch;
  const Status why(Reason::kFetchConnect, "refused");
  int n_lines = 0;
  for (int i = 0; i < 1000; ++i) {  // 20 s of failures
    const std::string line = watch.failed(Nanos(i * 20ms), why, "\"s3://b/k\"", 600);
    if (line.empty()) continue;
    ++n_lines;
    EXPECT_THAT(line, HasSubstr("FETCH_CONNECT"));
    EXPECT_THAT(line, HasSubstr("s3://b/k"));
  }
  EXPECT_EQ(n_lines, 4);  // after 2, 7, 12, 17 s
  EXPECT_FALSE(watch.ever_succeeded());
  EXPECT_THAT(watch.succeeded(Nanos(21s)), HasSubstr("back after 21 s"));
  EXPECT_EQ(watch.succeeded(Nanos(22s)), "");
  EXPECT_TRUE(watch.ever_succeeded());
  // Single failures between successes are nobody's concern.
  for (int i = 0; i < 1000; ++i) {
    EXPECT_EQ(watch.failed(Nanos(23s) + i * 20ms, why, "u", 600), "");
    EXPECT_EQ(watch.succeeded(Nanos(23s) + i * 20ms), "");
  }
}

}  // namespace
}  // namespace stoker

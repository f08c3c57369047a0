#include "metric/log_histogram.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace stoker {
namespace {

TEST(LogHistogram, BucketsHoldWhatWasAdded) {
  std::mt19937_64 rng(3);
  LogHistogram histogram;
  std::vector<std::int64_t> values = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 15, 16, INT64_MAX / 4};
  for (int i = 0; i < 3000; ++i) values.push_back(static_cast<std::int64_t>(rng() >> (4 + rng() % 59)));
  for (const std::int64_t v : values) histogram.add(v);
  std::int64_t n = 0, previous_end = 0;
  for (const auto& bucket : histogram.buckets()) {
    EXPECT_GE(bucket.begin, previous_end);
    EXPECT_GT(bucket.end, bucket.begin);
    EXPECT_TRUE(bucket.end <= 8 || bucket.end - bucket.begin <= bucket.begin / 4) << bucket.begin;
    const auto inside = std::count_if(values.begin(), values.end(),
                                      [&](std::int64_t v) { return v >= bucket.begin && v < bucket.end; });
    EXPECT_EQ(bucket.n, inside) << bucket.begin << " to " << bucket.end;
    n += bucket.n;
    previous_end = bucket.end;
  }
  EXPECT_EQ(n, static_cast<std::int64_t>(values.size()));
  EXPECT_EQ(histogram.least(), *std::min_element(values.begin(), values.end()));
  EXPECT_EQ(histogram.most(), *std::max_element(values.begin(), values.end()));
}

TEST(LogHistogram, TotalStaysAtItsLargest) {
  LogHistogram histogram, other;
  for (int i = 0; i < 3; ++i) histogram.add(INT64_MAX / 2);
  EXPECT_EQ(histogram.total(), INT64_MAX);
  other.add(7);
  other.merge(histogram);
  EXPECT_EQ(other.total(), INT64_MAX);
}

TEST(LogHistogram, QuantilesAreWithinABucket) {
  LogHistogram histogram;
  for (std::int64_t v = 1; v <= 10'000; ++v) histogram.add(v);
  for (const double share : {0.1, 0.5, 0.9, 0.99}) {
    const double exact = share * 10'000;
    EXPECT_GE(static_cast<double>(histogram.quantile(share)), exact);
    EXPECT_LE(static_cast<double>(histogram.quantile(share)), exact * 1.26);
  }
  EXPECT_EQ(histogram.quantile(1.0), 10'000);
  EXPECT_EQ(LogHistogram().quantile(0.5), 0);
}

TEST(LogHistogram, PartsMergeToTheWhole) {
  LogHistogram whole, left, right;
  for (std::int64_t v = 0; v < 5000; v += 7) {
    whole.add(v);
    (v % 3 == 0 ? left : right).add(v);
  }
  left.merge(right);
  left.merge(LogHistogram());
  EXPECT_EQ(left.n(), whole.n());
  EXPECT_EQ(left.total(), whole.total());
  EXPECT_EQ(left.least(), whole.least());
  EXPECT_EQ(left.most(), whole.most());
  EXPECT_EQ(left.buckets().size(), whole.buckets().size());
  for (std::size_t i = 0; i < whole.buckets().size(); ++i) EXPECT_EQ(left.buckets()[i].n, whole.buckets()[i].n);
}

}  // namespace
}  // namespace stoker

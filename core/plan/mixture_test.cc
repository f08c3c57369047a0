#include "plan/mixture.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/rng.h"

namespace stoker {
namespace {

using Kind = Share::Kind;
using Counts = std::vector<std::uint64_t>;

Counts counts(const std::vector<Share>& shares, const Counts& n_rows) {
  auto got = samples_per_epoch(shares, n_rows);
  EXPECT_TRUE(got.ok()) << got.status().to_string();
  return got.ok() ? *got : Counts{};
}

TEST(Mixture, CountsOfAnEpoch) {
  EXPECT_EQ(counts({{}, {}}, {10, 0}), (Counts{10, 0}));
  EXPECT_EQ(counts({{Kind::kRepeat, 2'500'000}, {Kind::kRepeat, 100'000}, {Kind::kSamples, 7}, {}}, {10, 55, 3, 4}),
            (Counts{25, 6, 7, 4}));
  EXPECT_EQ(counts({{Kind::kWeight, 1}, {Kind::kWeight, 1}}, {10, 90}), (Counts{50, 50}));
  EXPECT_EQ(counts({{Kind::kWeight, 1}, {Kind::kWeight, 1}, {Kind::kWeight, 1}}, {1, 1, 9}), (Counts{4, 4, 3}));
  EXPECT_EQ(counts({{Kind::kWeight, 5}}, {10}), (Counts{10}));
}

TEST(Mixture, WeightsGiveTheirPartsToWithinOneSample) {
  Rng rng(1);
  for (int i = 0; i < 1000; ++i) {
    const std::size_t n = 1 + static_cast<std::size_t>(rng.uniform() * 8);
    std::vector<Share> shares;
    Counts n_rows;
    double all = 0;
    for (std::size_t k = 0; k < n; ++k) {
      shares.push_back({Kind::kWeight, 1 + static_cast<std::uint64_t>(rng.uniform() * 1e9)});
      n_rows.push_back(1 + static_cast<std::uint64_t>(rng.uniform() * 1e6));
      all += static_cast<double>(shares.back().value);
    }
    const std::uint64_t total = std::accumulate(n_rows.begin(), n_rows.end(), std::uint64_t{0});
    const Counts got = counts(shares, n_rows);
    ASSERT_EQ(std::accumulate(got.begin(), got.end(), std::uint64_t{0}), total);
    for (std::size_t k = 0; k < n; ++k) {
      const double exact = static_cast<double>(total) * static_cast<double>(shares[k].value) / all;
      ASSERT_NEAR(static_cast<double>(got[k]), exact, 1.0 + 1e-6);
    }
  }
}

TEST(Mixture, RefusesWhatHasNoMeaning) {
  const auto reason = [](const std::vector<Share>& shares, const Counts& n_rows) {
    return samples_per_epoch(shares, n_rows).status().reason();
  };
  EXPECT_EQ(reason({{Kind::kWeight, 1}, {}}, {1, 1}), Reason::kSettings);
  EXPECT_EQ(reason({{Kind::kRepeat, 0}}, {1}), Reason::kSettings);
  EXPECT_EQ(reason({{Kind::kSamples, 3}}, {0}), Reason::kNoData);
  EXPECT_EQ(reason({{Kind::kRepeat, std::uint64_t{1} << 61}}, {std::uint64_t{1} << 40}), Reason::kSettings);
}

}  // namespace
}  // namespace stoker

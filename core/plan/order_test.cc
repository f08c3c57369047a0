#include "plan/order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "base/rng.h"

namespace stoker {
namespace {

Order make(std::vector<SourceRows> sources, std::uint64_t seed, Shuffle shuffle = Shuffle::kRows,
           std::optional<std::uint64_t> epochs = std::nullopt) {
  auto order = Order::make(std::move(sources), seed, shuffle, epochs);
  EXPECT_TRUE(order.ok()) << order.status().to_string();
  return *std::move(order);
}

std::vector<std::uint64_t> rows(const Order& order, std::uint64_t first, std::uint64_t n) {
  std::vector<std::uint64_t> out;
  for (std::uint64_t i = first; i < first + n; ++i) out.push_back(order.at(i).row);
  return out;
}

TEST(PermuteIndex, IsABijectionOfEverySize) {
  for (std::uint64_t n = 1; n <= 600; ++n) {
    std::vector<bool> hit(n, false);
    for (std::uint64_t i = 0; i < n; ++i) {
      const std::uint64_t to = permute_index(i, n, 77 + n);
      ASSERT_LT(to, n);
      ASSERT_FALSE(hit[to]) << n;
      hit[to] = true;
    }
  }
}

TEST(PermuteIndex, StaysInRangeForHugeSizes) {
  for (const std::uint64_t n : {(1ULL << 32) + 1, (1ULL << 40) - 3, (1ULL << 63) - 1, 1ULL << 63}) {
    std::set<std::uint64_t> seen;
    for (std::uint64_t i = 0; i < 1000; ++i) {
      const std::uint64_t to = permute_index(n - 1 - i, n, 5);
      EXPECT_LT(to, n);
      EXPECT_TRUE(seen.insert(to).second);
    }
  }
}

// Where the first element goes is uniform over keys: chi-squared with 9 degrees of freedom stays below its 99.99 %
// point.
TEST(PermuteIndex, SpreadsOverKeys) {
  for (const std::uint64_t index : {0ULL, 4ULL, 9ULL}) {
    std::array<int, 10> n_hits{};
    constexpr int kKeys = 20000;
    for (std::uint64_t key = 0; key < kKeys; ++key) ++n_hits[permute_index(index, 10, mix64(key + 1))];
    double chi2 = 0;
    for (const int n : n_hits) chi2 += (n - kKeys / 10.0) * (n - kKeys / 10.0) / (kKeys / 10.0);
    EXPECT_LT(chi2, 33.7) << index;
  }
}

// Neighbours do not stay neighbours: the expected number of steps of +1 in a random permutation is 1.
TEST(PermuteIndex, BreaksRuns) {
  constexpr std::uint64_t kRows = 100000;
  int n_runs = 0;
  for (std::uint64_t i = 0; i + 1 < kRows; ++i)
    n_runs += permute_index(i, kRows, 3) + 1 == permute_index(i + 1, kRows, 3) ? 1 : 0;
  EXPECT_LT(n_runs, 10);
}

TEST(Order, EveryRowOncePerPassOverAllSources) {
  const Order order = make({{"a", 5}, {"b", 0}, {"c", 8}}, 17);
  EXPECT_EQ(order.rows_per_pass(), 13U);
  for (std::uint64_t pass = 0; pass < 4; ++pass) {
    std::set<std::pair<std::uint32_t, std::uint64_t>> seen;
    for (std::uint64_t i = 0; i < 13; ++i) {
      const OrderEntry entry = order.at(pass * 13 + i);
      EXPECT_EQ(entry.pass, pass);
      EXPECT_LT(entry.row, entry.source == 0 ? 5U : 8U);
      EXPECT_NE(entry.source, 1U);
      EXPECT_TRUE(seen.emplace(entry.source, entry.row).second);
    }
    EXPECT_EQ(seen.size(), 13U);
  }
}

// If this fails, every user's run changes.
TEST(Order, LiteralOrder) {
  const Order order = make({{"00112233445566778899aabbccddeeff-1000", 10}}, 17);
  EXPECT_EQ(rows(order, 0, 10), (std::vector<std::uint64_t>{8, 3, 1, 2, 7, 4, 5, 9, 6, 0}));
  EXPECT_EQ(rows(order, 10, 10), (std::vector<std::uint64_t>{1, 9, 8, 3, 4, 7, 0, 6, 2, 5}));
  const Order large = make({{"x", 1'000'000}, {"y", 2'000'000}}, 1);
  const OrderEntry entry = large.at(123'456'789);
  EXPECT_EQ(std::tuple(entry.pass, entry.source, entry.row), std::tuple(41U, 0U, 603852U));
}

TEST(Order, DependsOnSeedPassAndContent) {
  const auto base = rows(make({{"a", 100}}, 1), 0, 100);
  EXPECT_EQ(rows(make({{"a", 100}}, 1), 0, 100), base);
  EXPECT_NE(rows(make({{"a", 100}}, 2), 0, 100), base);
  EXPECT_NE(rows(make({{"b", 100}}, 1), 0, 100), base);
  EXPECT_NE(rows(make({{"a", 100}}, 1), 100, 100), base);
}

TEST(Order, NoneIsFileOrder) {
  const Order order = make({{"a", 3}, {"b", 2}}, 9, Shuffle::kNone);
  std::vector<std::pair<std::uint32_t, std::uint64_t>> seen;
  for (std::uint64_t i = 0; i < 6; ++i) seen.emplace_back(order.at(i).source, order.at(i).row);
  EXPECT_EQ(seen,
            (std::vector<std::pair<std::uint32_t, std::uint64_t>>{{0, 0}, {0, 1}, {0, 2}, {1, 0}, {1, 1}, {0, 0}}));
}

Order mixed(Shuffle shuffle, std::uint64_t seed = 17) {
  const std::vector<MixtureEntry> mixture = {{2, 25}, {1, 4}, {1, 0}};  // 10 rows in two files, 16 rows, 5 rows
  auto order = Order::make({{"a", 4}, {"b", 6}, {"c", 16}, {"d", 5}}, seed, shuffle, std::nullopt, mixture);
  EXPECT_TRUE(order.ok()) << order.status().to_string();
  return *std::move(order);
}

TEST(Order, AMixtureGivesEachEntryItsPartOfEveryEpochAndEachRowItsTurn) {
  for (const Shuffle shuffle : {Shuffle::kRows, Shuffle::kNone}) {
    const Order order = mixed(shuffle);
    ASSERT_EQ(order.rows_per_pass(), 29U);
    std::map<std::pair<std::uint32_t, std::uint64_t>, std::set<std::uint64_t>> passes;  // of each row
    for (std::uint64_t epoch = 0; epoch < 12; ++epoch) {
      std::array<int, 4> n{};
      for (std::uint64_t i = 0; i < 29; ++i) {
        const OrderEntry entry = order.at(epoch * 29 + i);
        ++n[entry.source];
        EXPECT_TRUE((passes[{entry.source, entry.row}].insert(entry.pass).second)) << "twice in one pass";
      }
      EXPECT_EQ(n[0] + n[1], 25);
      EXPECT_EQ(n[2], 4);
      EXPECT_EQ(n[3], 0);
      std::size_t least = SIZE_MAX;
      std::size_t most = 0;
      for (const auto& [row, of_row] : passes) {
        if (row.first > 1) continue;
        least = std::min(least, of_row.size());
        most = std::max(most, of_row.size());
      }
      EXPECT_LE(most - least, 1U);
    }
    EXPECT_EQ(passes.size(), 10U + 16U);
  }
}

TEST(Order, AMixtureWithoutShufflingGoesOnWhereItStopped) {
  const Order order = mixed(Shuffle::kNone);
  EXPECT_EQ(rows(order, 25, 4), (std::vector<std::uint64_t>{0, 1, 2, 3}));
  EXPECT_EQ(rows(order, 29 + 25, 4), (std::vector<std::uint64_t>{4, 5, 6, 7}));
  EXPECT_EQ(rows(order, 29, 3), (std::vector<std::uint64_t>{1, 2, 3}))
      << "25 of 10 rows: five rows into its third pass";
}

TEST(Order, AMixtureSpreadsOverTheEpoch) {
  const std::vector<MixtureEntry> mixture = {{1, 30'000}, {1, 10'000}};
  const Order order = *Order::make({{"a", 1000}, {"b", 100'000}}, 3, Shuffle::kRows, std::nullopt, mixture);
  for (std::uint64_t at = 0; at < 40'000; at += 4000) {
    int n = 0;
    for (std::uint64_t i = 0; i < 4000; ++i) n += order.at(at + i).source == 1 ? 1 : 0;
    EXPECT_NEAR(n, 1000, 130) << at;  // 4.7 standard deviations
  }
}

// If this fails, every user's run changes.
TEST(Order, LiteralOrderOfAMixture) {
  std::vector<std::uint64_t> got;
  for (std::uint64_t i = 0; i < 12; ++i) {
    const OrderEntry entry = mixed(Shuffle::kRows).at(i);
    got.push_back(entry.pass * 10'000 + entry.source * 100 + entry.row);
  }
  EXPECT_EQ(got, (std::vector<std::uint64_t>{20102, 10103, 10002, 10102, 105, 214, 2, 0, 20003, 101, 20001, 10101}));
}

TEST(Order, AMixtureThatGivesEachRowOnceIsNone) {
  const std::vector<MixtureEntry> mixture = {{1, 3}, {1, 2}};
  const Order order = *Order::make({{"a", 3}, {"b", 2}}, 9, Shuffle::kRows, std::nullopt, mixture);
  const Order plain = make({{"a", 3}, {"b", 2}}, 9);
  for (std::uint64_t i = 0; i < 20; ++i) {
    EXPECT_EQ(order.at(i).source, plain.at(i).source);
    EXPECT_EQ(order.at(i).row, plain.at(i).row);
  }
}

TEST(Order, RefusesMixturesThatDoNotFit) {
  const auto reason = [](const std::vector<MixtureEntry>& mixture) {
    return Order::make({{"a", 3}, {"b", 0}}, 9, Shuffle::kRows, std::nullopt, mixture).status().reason();
  };
  EXPECT_EQ(reason({{1, 9}, {1, 1}}), Reason::kNoData);
  EXPECT_EQ(reason({{1, 0}, {1, 0}}), Reason::kNoData);
  EXPECT_EQ(reason({{1, 9}}), Reason::kInternal);
  EXPECT_EQ(reason({{3, 9}}), Reason::kInternal);
}

TEST(Order, SizeIsThatOfTheEpochs) {
  EXPECT_EQ(make({{"a", 3}}, 1, Shuffle::kRows, 4).size(), 12U);
  EXPECT_EQ(make({{"a", 3}}, 1).size(), std::nullopt);
}

TEST(Order, RefusesNothingToOrder) {
  EXPECT_EQ(Order::make({}, 1, Shuffle::kRows, {}).status().reason(), Reason::kNoData);
  EXPECT_EQ(Order::make({{"a", 0}}, 1, Shuffle::kRows, {}).status().reason(), Reason::kNoData);
  EXPECT_EQ(Order::make({{"a", 2}}, 1, Shuffle::kRows, 0).status().reason(), Reason::kSettings);
  EXPECT_EQ(Order::make({{"a", 2}}, 1, Shuffle::kRows, 1ULL << 62).status().reason(), Reason::kSettings);
  EXPECT_EQ(Order::make({{"a", 1ULL << 63}}, 1, Shuffle::kRows, 1).status().reason(), Reason::kSettings);
}

}  // namespace
}  // namespace stoker

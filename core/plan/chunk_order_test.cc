#include "plan/chunk_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <vector>

namespace stoker {
namespace {

ChunkOrder make(const std::vector<SourceBytes>& sources, std::uint64_t seed, const ChunkSettings& settings,
                std::uint64_t window_samples = 8, std::optional<std::uint64_t> epochs = {}) {
  auto order = ChunkOrder::make(sources, seed, settings, window_samples, epochs);
  EXPECT_TRUE(order.ok()) << order.status().to_string();
  return *std::move(order);
}

TEST(ChunkOrder, APassHasEveryByteOnceAndGroupsAreEven) {
  for (const std::uint64_t chunk_bytes : {1, 3, 10, 1000}) {
    const std::vector<SourceBytes> sources = {{"a", 97, 20}, {"b", 0, 0}, {"c", 40, 9}};
    const ChunkOrder order = make(sources, 3, {chunk_bytes, 4});
    const std::uint64_t n_groups = order.windows_per_pass() / (order.place_of(order.windows_per_pass() - 1).part + 1);
    for (const std::uint64_t pass : {0, 1}) {
      std::map<std::pair<std::uint32_t, std::uint64_t>, int> seen;
      std::set<std::size_t> sizes;
      for (std::uint64_t group = 0; group < n_groups; ++group) {
        const auto chunks = order.chunks_of(pass, group);
        sizes.insert(chunks.size());
        for (const Chunk& chunk : chunks) {
          for (std::uint64_t at = chunk.begin; at < chunk.end; ++at) ++seen[{chunk.source, at}];
        }
      }
      EXPECT_EQ(seen.size(), 137U);
      for (const auto& [at, n] : seen) EXPECT_EQ(n, 1);
      EXPECT_LE(*sizes.rbegin() - *sizes.begin(), 1U);
      EXPECT_LE(*sizes.rbegin(), 4U);
    }
    if (chunk_bytes < 10) {
      EXPECT_NE(order.chunks_of(0, 0), order.chunks_of(1, 0)) << "passes differ";
    }
  }
}

TEST(ChunkOrder, TheWindowsOfAGroupHaveEachOfItsRowsOnce) {
  const ChunkOrder order = make({{"a", 1000, 300}}, 3, {100, 4}, 16);
  const std::uint64_t parts = order.windows_per_pass() / 3;
  EXPECT_EQ(parts, 6U) << "300 rows in 3 groups, 16 to a window";
  for (const std::uint64_t n_rows : {0, 1, 5, 6, 7, 100, 1000}) {
    std::vector<std::uint64_t> rows;
    std::size_t least = n_rows;
    std::size_t most = 0;
    for (std::uint64_t part = 0; part < parts; ++part) {
      const auto window = order.rows_of({.pass = 1, .group = 2, .part = part}, n_rows);
      least = std::min(least, window.size());
      most = std::max(most, window.size());
      rows.insert(rows.end(), window.begin(), window.end());
    }
    EXPECT_LE(most - least, 1U);
    std::sort(rows.begin(), rows.end());
    ASSERT_EQ(rows.size(), n_rows);
    for (std::uint64_t i = 0; i < n_rows; ++i) EXPECT_EQ(rows[i], i);
  }
}

TEST(ChunkOrder, AWindowsPlaceIsFoundWithoutItsPredecessors) {
  const ChunkOrder order = make({{"a", 1000, 300}}, 3, {100, 4}, 16, 2);
  EXPECT_EQ(order.n_windows(), 36U);
  EXPECT_EQ(order.place_of(0), (ChunkOrder::Place{0, 0, 0}));
  EXPECT_EQ(order.place_of(7), (ChunkOrder::Place{0, 1, 1}));
  EXPECT_EQ(order.place_of(35), (ChunkOrder::Place{1, 2, 5}));
  EXPECT_EQ(order.n_before(0), 0U);
  EXPECT_EQ(order.n_before(18), 300U);
  EXPECT_EQ(order.n_before(36), 600U);
  EXPECT_EQ(make({{"a", 1000, 300}}, 3, {100, 4}).n_windows(), UINT64_MAX);
}

TEST(ChunkOrder, DependsOnSeedContentAndSizes) {
  const auto first = [](const std::string& content, std::uint64_t seed, const ChunkSettings& settings) {
    return make({{content, 1'000'000, 1000}}, seed, settings).rows_of({}, 1000);
  };
  const auto base = first("a", 1, {1000, 4});
  EXPECT_EQ(first("a", 1, {1000, 4}), base);
  EXPECT_NE(first("b", 1, {1000, 4}), base);
  EXPECT_NE(first("a", 2, {1000, 4}), base);
  EXPECT_NE(first("a", 1, {1001, 4}), base);
  EXPECT_NE(first("a", 1, {1000, 5}), base);
}

// If this fails, every user's run changes.
TEST(ChunkOrder, LiteralOrder) {
  const ChunkOrder order = make({{"a", 95, 20}, {"b", 31, 6}}, 7, {10, 3}, 4);
  EXPECT_EQ(order.windows_per_pass(), 5U);
  std::vector<std::tuple<std::uint32_t, std::uint64_t>> chunks;
  for (const Chunk& chunk : order.chunks_of(0, 0)) chunks.emplace_back(chunk.source, chunk.begin);
  for (const Chunk& chunk : order.chunks_of(1, 3)) chunks.emplace_back(chunk.source, chunk.begin);
  EXPECT_EQ(chunks,
            (std::vector<std::tuple<std::uint32_t, std::uint64_t>>{{1, 20}, {0, 60}, {0, 40}, {0, 20}, {0, 80}}));
  EXPECT_EQ(order.rows_of({.pass = 1, .group = 2, .part = 0}, 12),
            (std::vector<std::uint64_t>{6, 9, 11, 3, 10, 2, 7, 8, 1, 0, 4, 5}));
}

TEST(ChunkOrder, RefusesWhatItCannotOrder) {
  const auto reason = [](const std::vector<SourceBytes>& sources, const ChunkSettings& settings,
                         std::uint64_t window_samples, std::optional<std::uint64_t> epochs) {
    return ChunkOrder::make(sources, 1, settings, window_samples, epochs).status().reason();
  };
  EXPECT_EQ(reason({}, {}, 1, {}), Reason::kNoData);
  EXPECT_EQ(reason({{"a", 0, 0}}, {}, 1, {}), Reason::kNoData);
  EXPECT_EQ(reason({{"a", 9, 1}}, {0, 1}, 1, {}), Reason::kSettings);
  EXPECT_EQ(reason({{"a", 9, 1}}, {1, 0}, 1, {}), Reason::kSettings);
  EXPECT_EQ(reason({{"a", 9, 1}}, {}, 0, {}), Reason::kSettings);
  EXPECT_EQ(reason({{"a", 9, 1}}, {}, 1, 0), Reason::kSettings);
  EXPECT_EQ(reason({{"a", 9, 1}}, {}, 1, std::uint64_t{1} << 50), Reason::kSettings);
  EXPECT_EQ(reason({{"a", std::uint64_t{1} << 60, std::uint64_t{1} << 60}}, {1, 1}, 1, {}), Reason::kSettings);
}

}  // namespace
}  // namespace stoker

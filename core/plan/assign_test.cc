#include "plan/assign.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <set>

#include "base/rng.h"

namespace stoker {
namespace {

std::vector<PhaseCosts> drawn(Rng& rng, std::size_t n) {
  std::vector<PhaseCosts> costs(n);
  for (PhaseCosts& c : costs) {
    c.language = static_cast<std::int64_t>(rng.next() % 1000);
    c.vision = rng.next() % 3 == 0 ? 0 : static_cast<std::int64_t>(rng.next() % 1000);
  }
  return costs;
}

// What the ranks wait for: per micro-batch the slowest in each phase, summed over the step.
std::int64_t per_phase(std::span<const PhaseCosts> costs, std::span<const PackPlace> places) {
  std::map<std::int32_t, PhaseCosts> slowest;
  for (std::size_t i = 0; i < costs.size(); ++i) {
    PhaseCosts& s = slowest[places[i].micro_batch];
    s.language = std::max(s.language, costs[i].language);
    s.vision = std::max(s.vision, costs[i].vision);
  }
  std::int64_t sum = 0;
  for (const auto& [micro, s] : slowest) sum += s.language + s.vision;
  return sum;
}

std::int64_t most_of_ranks(std::span<const PhaseCosts> costs, std::span<const PackPlace> places,
                           const std::function<std::int64_t(const PhaseCosts&)>& of) {
  std::map<std::int32_t, std::int64_t> sums;
  for (std::size_t i = 0; i < costs.size(); ++i) sums[places[i].rank] += of(costs[i]);
  std::int64_t most = 0;
  for (const auto& [rank, sum] : sums) most = std::max(most, sum);
  return most;
}

std::vector<PackPlace> in_order(std::size_t n, std::int32_t dp_size) {
  std::vector<PackPlace> places(n);
  for (std::size_t i = 0; i < n; ++i) {
    places[i] = {static_cast<std::int32_t>(i) % dp_size, static_cast<std::int32_t>(i) / dp_size};
  }
  return places;
}

TEST(AssignStep, EveryPlaceOnceAndNoSlowerThanInOrder) {
  Rng rng(3);
  for (int round = 0; round < 200; ++round) {
    const auto dp_size = static_cast<std::int32_t>(1 + rng.next() % 8);
    const auto n_micro = static_cast<std::int32_t>(1 + rng.next() % 6);
    const auto costs = drawn(rng, static_cast<std::size_t>(dp_size * n_micro));
    const auto places = assign_step(costs, dp_size);
    std::set<std::pair<std::int32_t, std::int32_t>> seen;
    for (const auto& [rank, micro] : places) {
      EXPECT_TRUE(rank >= 0 && rank < dp_size && micro >= 0 && micro < n_micro);
      EXPECT_TRUE(seen.emplace(rank, micro).second);
    }
    EXPECT_EQ(assign_step(costs, dp_size), places);
    EXPECT_LE(per_phase(costs, places), per_phase(costs, in_order(costs.size(), dp_size)));
  }
}

// The oracle: all ways to share out 6 packs.
TEST(AssignStep, IsNearTheBestThereIs) {
  Rng rng(7);
  double found = 0, best = 0;
  for (int round = 0; round < 40; ++round) {
    const auto costs = drawn(rng, 6);
    std::vector<PackPlace> places = in_order(6, 2);
    std::vector<std::size_t> order = {0, 1, 2, 3, 4, 5};
    std::int64_t least = INT64_MAX;
    do {
      for (std::size_t i = 0; i < 6; ++i) places[order[i]] = in_order(6, 2)[i];
      least = std::min(least, per_phase(costs, places));
    } while (std::next_permutation(order.begin(), order.end()));
    found += static_cast<double>(per_phase(costs, assign_step(costs, 2)));
    best += static_cast<double>(least);
  }
  EXPECT_LE(found, 1.05 * best);
}

TEST(AssignStep, RanksAreEvenOverTheStepInEveryPhase) {
  const std::vector<PhaseCosts> costs = {{8, 0}, {7, 1}, {6, 2}, {5, 3}, {4, 4}, {3, 5}, {2, 6}, {1, 7}};
  const auto places = assign_step(costs, 2);
  EXPECT_EQ(most_of_ranks(costs, places, [](const PhaseCosts& c) { return c.language; }), 18);
  EXPECT_EQ(most_of_ranks(costs, places, [](const PhaseCosts& c) { return c.vision; }), 14);

  Rng rng(5);
  const auto many = drawn(rng, 256);
  const auto dealt = assign_step(many, 32);
  for (const auto& of : {std::function([](const PhaseCosts& c) { return c.language; }),
                         std::function([](const PhaseCosts& c) { return c.vision; }),
                         std::function([](const PhaseCosts& c) { return c.language + c.vision; })}) {
    std::int64_t all = 0;
    for (const PhaseCosts& c : many) all += of(c);
    EXPECT_LE(most_of_ranks(many, dealt, of) * 32 * 100, all * 108);
  }
}

TEST(AssignStep, HugeAndEmptyCostsDoNotOverflow) {
  std::vector<PhaseCosts> costs(64);
  costs[17] = {std::int64_t{1} << 61, std::int64_t{1} << 60};
  costs[18] = {std::int64_t{1} << 60, 0};
  for (const std::int32_t dp_size : {1, 2, 64}) EXPECT_EQ(assign_step(costs, dp_size).size(), 64U);
  EXPECT_EQ(assign_step(std::vector<PhaseCosts>(8), 4).size(), 8U);
}

// If this fails, every user's batches go to other ranks; a step's packs are the same.
TEST(AssignStep, LiteralPlaces) {
  Rng rng(1);
  std::string found;
  for (const PackPlace& place : assign_step(drawn(rng, 12), 3)) {
    found += std::to_string(place.rank) + std::to_string(place.micro_batch) + " ";
  }
  EXPECT_EQ(found, "11 03 13 12 20 00 10 22 02 21 01 23 ");
}

}  // namespace
}  // namespace stoker

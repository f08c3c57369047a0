#include "plan/baselines.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "plan/mixture_for_test.h"

namespace stoker {
namespace {

constexpr Baseline kAll[] = {Baseline::kConcatenate, Baseline::kFirstFit, Baseline::kLargestFirst,
                             Baseline::kEqualCounts};

std::vector<PlanSample> lengths(const std::vector<std::int64_t>& tokens) {
  std::vector<PlanSample> samples;
  for (const std::int64_t n : tokens) {
    samples.emplace_back();
    samples.back().order_index = samples.size() - 1;
    samples.back().tokens = n;
  }
  return samples;
}

PackSettings packs_of(std::int64_t tokens) {
  PackSettings settings;
  settings.tokens_per_pack = tokens;
  return settings;
}

using Members = std::vector<std::vector<std::uint32_t>>;

Members packed(Baseline baseline, const std::vector<std::int64_t>& tokens, std::int64_t tokens_per_pack) {
  const auto plan = plan_baseline(baseline, 0, lengths(tokens), packs_of(tokens_per_pack));
  Members members;
  for (const PackPlan& pack : plan->packs) members.push_back(pack.members);
  return members;
}

TEST(Baselines, PackAsTheirNamesSay) {
  EXPECT_EQ(packed(Baseline::kConcatenate, {60, 50, 30, 40, 20}, 100), (Members{{0}, {1, 2}, {3, 4}}));
  EXPECT_EQ(packed(Baseline::kFirstFit, {60, 50, 30, 40, 20}, 100), (Members{{0, 2}, {1, 3}, {4}}));
  EXPECT_EQ(packed(Baseline::kLargestFirst, {60, 50, 30, 40, 20}, 100), (Members{{0, 3}, {1, 2, 4}}));
  EXPECT_EQ(packed(Baseline::kEqualCounts, {60, 50, 30, 40, 20}, 100), (Members{{0, 1}, {2, 3, 4}}));
}

TEST(Baselines, EverySampleOnceAndSumsTrue) {
  std::vector<PlanSample> samples = Mixture(5).window(2000);
  for (std::size_t i = 0; i < samples.size(); i += 17) samples[i].usable = false;
  for (const Baseline baseline : kAll) {
    const auto plan = plan_baseline(baseline, 3, samples, {});
    ASSERT_TRUE(plan.ok());
    std::vector<int> times(samples.size());
    for (const PackPlan& pack : plan->packs) {
      std::int64_t tokens = 0, vision = 0;
      for (const std::uint32_t i : pack.members) {
        ++times[i];
        tokens += samples[i].tokens;
        vision += samples[i].cost_vision;
      }
      EXPECT_EQ(pack.tokens, tokens);
      EXPECT_EQ(pack.total_tokens, tokens);
      EXPECT_EQ(pack.cost_vision, vision);
      EXPECT_TRUE(tokens <= 16384 || baseline == Baseline::kEqualCounts);
      EXPECT_TRUE(std::is_sorted(pack.members.begin(), pack.members.end()));
    }
    for (std::size_t i = 0; i < samples.size(); ++i) EXPECT_EQ(times[i], samples[i].usable ? 1 : 0);
    EXPECT_EQ(plan->n_usable, static_cast<std::uint64_t>(std::count(times.begin(), times.end(), 1)));
  }
}

TEST(Baselines, FirstFitIsThatOfASimpleLoop) {
  const std::vector<PlanSample> samples = Mixture(6).window(500);
  Members expected;
  std::vector<std::int64_t> room;
  for (std::uint32_t i = 0; i < samples.size(); ++i) {
    if (!samples[i].usable) continue;
    std::size_t pack = 0;
    while (pack < room.size() && room[pack] < samples[i].tokens) ++pack;
    if (pack == room.size()) {
      room.push_back(16384);
      expected.emplace_back();
    }
    room[pack] -= samples[i].tokens;
    expected[pack].push_back(i);
  }
  const auto plan = plan_baseline(Baseline::kFirstFit, 0, samples, {});
  Members members;
  for (const PackPlan& pack : plan->packs) members.push_back(pack.members);
  EXPECT_EQ(members, expected);
}

TEST(Baselines, WhatCannotBePackedIsSaid) {
  for (const Baseline baseline : kAll) {
    EXPECT_EQ(plan_baseline(baseline, 0, lengths({101}), packs_of(100)).status().code(), Code::kInternal);
    EXPECT_TRUE(plan_baseline(baseline, 0, {}, {})->packs.empty());
  }
}

}  // namespace
}  // namespace stoker

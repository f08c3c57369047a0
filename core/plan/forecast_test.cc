#include "plan/forecast.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "plan/baselines.h"
#include "plan/mixture_for_test.h"

namespace stoker {
namespace {

// A step of packs with these (language, vision) costs.
StepPlan step_of(const std::vector<std::pair<std::int64_t, std::int64_t>>& costs) {
  auto window = std::make_shared<WindowPlan>();
  for (const auto& [language, vision] : costs) {
    PackPlan pack;
    pack.members = {0};
    pack.cost_language = language;
    pack.cost_vision = vision;
    window->packs.push_back(pack);
  }
  StepPlan step;
  for (std::uint32_t i = 0; i < costs.size(); ++i) step.packs.push_back({window, i});
  return step;
}

TEST(Forecast, IsWhatCanBeWorkedOutByHand) {
  // Two ranks, two micro-batches, in order: rank 0 gets packs 0 and 2, rank 1 packs 1 and 3.
  RankForecaster two(2, Placement::kInOrder);
  two.add(step_of({{10, 0}, {20, 6}, {30, 2}, {10, 4}}));
  const RankForecast f = two.forecast();
  EXPECT_EQ(f.n_steps, 1);
  EXPECT_DOUBLE_EQ(f.busy, 41);             // (42 + 40) / 2
  EXPECT_DOUBLE_EQ(f.per_step, 42);         // max(10 + 32, 26 + 14)
  EXPECT_DOUBLE_EQ(f.per_micro_batch, 58);  // 26 + 32
  EXPECT_DOUBLE_EQ(f.per_phase, 26 + 34);   // (20 + 6) + (30 + 4)
  EXPECT_DOUBLE_EQ(f.total.mean, 42.0 / 41);
  EXPECT_DOUBLE_EQ(f.language.mean, 40.0 / 35);
  EXPECT_DOUBLE_EQ(f.vision.worst, 10.0 / 6);
  ASSERT_EQ(f.steps.size(), 1U);
  EXPECT_DOUBLE_EQ(f.steps[0].least, 40);
  EXPECT_DOUBLE_EQ(f.steps[0].per_phase, 60);
}

TEST(Forecast, StepsWithoutAPhaseSayNothingOfIt) {
  RankForecaster two(2, Placement::kBalanced);
  two.add(step_of({{10, 0}, {10, 0}}));
  two.add(step_of({{10, 3}, {10, 1}}));
  EXPECT_DOUBLE_EQ(two.forecast().vision.mean, 1.5);
  EXPECT_DOUBLE_EQ(RankForecaster(4, Placement::kBalanced).forecast().total.worst, 1);
}

TEST(Forecast, MeetingMoreOftenNeverCostsLess) {
  StepPlanner steps(64, 100'000);
  RankForecaster forecaster(8, Placement::kBalanced);
  Mixture mixture(7);
  for (std::uint64_t w = 0; w < 4; ++w) {
    ASSERT_TRUE(steps.add(std::make_shared<WindowPlan>(*plan_window(w, mixture.window(1024), {}))).ok());
  }
  steps.finish();  // the last step has dummies
  while (const auto step = steps.next()) forecaster.add(*step);
  const RankForecast f = forecaster.forecast();
  EXPECT_GT(f.n_steps, 3);
  EXPECT_LE(f.busy, f.per_step);
  EXPECT_LE(f.per_step, f.per_micro_batch);
  EXPECT_LE(f.per_micro_batch, f.per_phase);
  EXPECT_GE(f.total.worst, f.total.mean);
  EXPECT_EQ(static_cast<std::int64_t>(f.steps.size()), f.n_steps);
}

// The claim that `stoker plan --compare` shows on anybody's data, on the mixture that it was made for: 64 ranks, one
// pack each, before (packs filled as samples come, dealt as they come) and after.
TEST(Forecast, BalanceTakesAwayWhatSixtyFourRanksLoseToImbalance) {
  constexpr std::int32_t kRanks = 64;
  StepPlanner before_steps(kRanks, 1'000'000), after_steps(kRanks, 1'000'000);
  RankForecaster before(kRanks, Placement::kInOrder), after(kRanks, Placement::kBalanced);
  Mixture mixture(8);
  for (std::uint64_t w = 0; w < 5; ++w) {
    const std::vector<PlanSample> window = mixture.window(4096);
    ASSERT_TRUE(
        before_steps.add(std::make_shared<WindowPlan>(*plan_baseline(Baseline::kConcatenate, w, window, {}))).ok());
    ASSERT_TRUE(after_steps.add(std::make_shared<WindowPlan>(*plan_window(w, window, {}))).ok());
    while (const auto step = before_steps.next()) before.add(*step);
    while (const auto step = after_steps.next()) after.add(*step);
  }
  const RankForecast b = before.forecast(), a = after.forecast();
  const auto lost = [](double busy, double step) { return 1 - busy / step; };
  EXPECT_GT(lost(b.busy, b.per_step), 0.15);
  EXPECT_GT(lost(b.busy, b.per_phase), 0.18);
  EXPECT_LT(lost(a.busy, a.per_step), 0.02);
  EXPECT_LT(lost(a.busy, a.per_phase), 0.04);
}

}  // namespace
}  // namespace stoker

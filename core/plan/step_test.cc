#include "plan/step.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/rng.h"
#include "plan/order.h"

namespace stoker {
namespace {

// A finite or endless run over a few rows, as the pipeline would drive it: windows are planned when they are wanted.
class Driver {
 public:
  static constexpr std::uint64_t kRows = 97;
  static constexpr std::uint64_t kWindow = 40;

  Driver(std::int32_t packs_per_step, std::optional<std::uint64_t> epochs, PlanState start = {})
      : order_(*Order::make({{"run", kRows}}, 5, Shuffle::kRows, epochs)),
        planner_(packs_per_step, kRows, std::move(start)) {}

  std::optional<StepPlan> next() {
    while (true) {
      if (auto step = planner_.next()) return step;
      if (planner_.is_at_end()) return std::nullopt;
      feed();
      if (HasFailed()) return std::nullopt;
    }
  }

  const PlanSample& sample(const StepPack& pack, std::uint32_t member) {
    return windows_.at(pack.window->window)[member];
  }

 private:
  static bool HasFailed() { return ::testing::Test::HasFailure(); }

  void feed() {
    const std::uint64_t window = planner_.next_window();
    const std::uint64_t first = window * kWindow;
    const std::uint64_t last = std::min(first + kWindow, order_.size().value_or(first + kWindow));
    if (first >= last) {
      planner_.finish();
      return;
    }
    std::vector<PlanSample>& samples = windows_[window];
    samples.clear();
    for (std::uint64_t position = first; position < last; ++position) {
      const std::uint64_t row = order_.at(position).row;
      PlanSample s;
      s.order_index = position;
      s.tokens = 1 + static_cast<std::int64_t>(mix64(row + 1) % 50);
      s.target_tokens = s.tokens;
      s.cost_language = s.tokens * 100;
      s.cost_vision = static_cast<std::int64_t>(mix64(row + 1000) % 3000);
      s.usable = row % 10 != 3;
      samples.push_back(s);
    }
    PackSettings settings;
    settings.tokens_per_pack = 64;
    auto plan = plan_window(window, samples, settings);
    ASSERT_TRUE(plan.ok()) << plan.status().to_string();
    const Status added = planner_.add(std::make_shared<WindowPlan>(*std::move(plan)));
    ASSERT_TRUE(added.ok()) << added.to_string();
  }

  Order order_;
  StepPlanner planner_;
  std::map<std::uint64_t, std::vector<PlanSample>> windows_;
};

using Identity = std::vector<std::vector<std::uint64_t>>;  // order indices per pack; empty for a dummy

Identity identity_of(Driver& run, const StepPlan& step) {
  Identity packs;
  for (const StepPack& pack : step.packs) {
    auto& indices = packs.emplace_back();
    if (pack.is_dummy()) continue;
    for (const std::uint32_t member : pack.plan().members) indices.push_back(run.sample(pack, member).order_index);
  }
  return packs;
}

TEST(StepPlanner, FiniteRunHasEverySampleOnceAndEqualSteps) {
  Driver run(8, 3);
  std::map<std::uint64_t, int> n_seen;
  int n_dummies = 0;
  std::uint64_t n_steps = 0;
  while (auto step = run.next()) {
    EXPECT_EQ(step->packs.size(), 8U);
    EXPECT_EQ(step->step(), n_steps++);
    EXPECT_EQ(n_dummies, 0) << "only the last step has dummies";
    for (const auto& pack : identity_of(run, *step)) {
      n_dummies += pack.empty() ? 1 : 0;
      for (const std::uint64_t index : pack) ++n_seen[index];
    }
  }
  ASSERT_FALSE(HasFailure());
  const Order order = *Order::make({{"run", Driver::kRows}}, 5, Shuffle::kRows, 3);
  for (std::uint64_t i = 0; i < *order.size(); ++i) EXPECT_EQ(n_seen[i], order.at(i).row % 10 == 3 ? 0 : 1) << i;
}

TEST(StepPlanner, ResumeFromEveryStepGivesTheSameTail) {
  for (const std::optional<std::uint64_t> epochs : {std::optional<std::uint64_t>(4), std::optional<std::uint64_t>()}) {
    for (const std::int32_t packs_per_step : {1, 6, 64}) {
      std::vector<Identity> whole;
      std::vector<PlanState> before;
      PlanState after_last;
      Driver run(packs_per_step, epochs);
      while (whole.size() < 30) {
        const auto step = run.next();
        if (!step) break;
        if (!whole.empty()) {
          EXPECT_EQ(step->before, after_last);
        }
        whole.push_back(identity_of(run, *step));
        before.push_back(step->before);
        after_last = step->after;
      }
      ASSERT_GE(whole.size(), 2U);
      for (std::size_t i = 0; i < whole.size(); ++i) {
        Driver resumed(packs_per_step, epochs, before[i]);
        for (std::size_t k = i; k < whole.size(); ++k) {
          const auto step = resumed.next();
          ASSERT_TRUE(step.has_value()) << "resumed at " << i << ", step " << k;
          EXPECT_EQ(step->step(), k);
          EXPECT_EQ(identity_of(resumed, *step), whole[k]) << "resumed at " << i << ", step " << k;
        }
        if (epochs && whole.size() < 30) {
          EXPECT_FALSE(resumed.next().has_value());
        }
      }
      Driver past_the_end(packs_per_step, epochs, after_last);
      EXPECT_EQ(past_the_end.next().has_value(), !epochs || whole.size() == 30);
    }
  }
}

TEST(StepPlanner, UnionOverRanksDoesNotDependOnDpSize) {
  Driver run(24, 2);
  while (auto step = run.next()) {
    for (const std::int32_t dp_size : {1, 2, 3, 4, 6, 8, 12, 24}) {
      std::vector<int> n_seen(24, 0);
      for (std::int32_t rank = 0; rank < dp_size; ++rank) {
        const auto mine = step->micro_batches_of(rank, dp_size);
        EXPECT_EQ(mine.size(), static_cast<std::size_t>(24 / dp_size));
        for (const std::uint32_t pack : mine) ++n_seen[pack];
      }
      EXPECT_EQ(n_seen, std::vector<int>(24, 1)) << dp_size;
    }
  }
}

TEST(StepPlanner, TargetTokensAreThoseOfAllRanks) {
  Driver run(8, 1);
  while (auto step = run.next()) {
    std::int64_t sum = 0;
    for (const StepPack& pack : step->packs) sum += pack.is_dummy() ? 0 : pack.plan().target_tokens;
    EXPECT_EQ(step->target_tokens, sum);
  }
}

std::shared_ptr<const WindowPlan> window_of(std::uint64_t window, std::size_t n, bool usable) {
  std::vector<PlanSample> samples(n);
  for (PlanSample& s : samples) {
    s.tokens = 10;
    s.usable = usable;
  }
  PackSettings settings;
  settings.tokens_per_pack = 10;
  return std::make_shared<WindowPlan>(*plan_window(window, samples, settings));
}

TEST(StepPlanner, NoticesAPassWithoutAUsableSample) {
  StepPlanner planner(2, 25, {});
  EXPECT_TRUE(planner.add(window_of(0, 10, true)).ok());
  EXPECT_TRUE(planner.add(window_of(1, 10, false)).ok());
  EXPECT_TRUE(planner.add(window_of(2, 10, false)).ok());
  const Status status = planner.add(window_of(3, 10, false));
  EXPECT_EQ(status.reason(), Reason::kNoData);

  StepPlanner small(1, 3, {});  // several passes inside one window
  EXPECT_EQ(small.add(window_of(0, 10, false)).reason(), Reason::kNoData);
}

TEST(StepPlanner, NoticesAPassOfWindowsWithoutAUsableSample) {
  StepPlanner planner(1, UINT64_MAX, {}, 3);
  EXPECT_TRUE(planner.add(window_of(0, 0, false)).ok());
  EXPECT_TRUE(planner.add(window_of(1, 4, false)).ok());
  EXPECT_TRUE(planner.add(window_of(2, 4, true)).ok());
  EXPECT_TRUE(planner.add(window_of(3, 0, false)).ok());
  EXPECT_TRUE(planner.add(window_of(4, 0, false)).ok());
  EXPECT_EQ(planner.add(window_of(5, 7, false)).reason(), Reason::kNoData);
}

TEST(StepPlanner, RefusesAStateThatDoesNotFit) {
  StepPlanner first(2, 10, {});
  ASSERT_TRUE(first.add(window_of(0, 10, true)).ok());
  const PlanState state = first.next()->after;
  EXPECT_EQ(state.packs_delivered, 2U);
  EXPECT_EQ(state.window_digest, window_of(0, 10, true)->digest());

  EXPECT_EQ(StepPlanner(2, 10, state).add(window_of(0, 9, true)).reason(), Reason::kState);
  PlanState beyond = state;
  beyond.packs_delivered = 11;
  EXPECT_EQ(StepPlanner(2, 10, beyond).add(window_of(0, 10, true)).reason(), Reason::kState);
  EXPECT_TRUE(StepPlanner(2, 10, state).add(window_of(0, 10, true)).ok());
}

TEST(StepPlanner, RefusesWindowsOutOfTurn) {
  StepPlanner planner(2, 10, {});
  EXPECT_EQ(planner.add(window_of(1, 10, true)).reason(), Reason::kInternal);
  EXPECT_TRUE(planner.add(window_of(0, 10, true)).ok());
  EXPECT_EQ(planner.add(window_of(0, 10, true)).reason(), Reason::kInternal);
  planner.finish();
  EXPECT_EQ(planner.add(window_of(1, 10, true)).reason(), Reason::kInternal);
}

TEST(StepPlanner, FinishedWithoutASampleIsTheEnd) {
  StepPlanner planner(2, 10, {});
  planner.finish();
  EXPECT_FALSE(planner.next().has_value());
  EXPECT_TRUE(planner.is_at_end());
}

TEST(CheckDpSize, MustDivide) {
  EXPECT_TRUE(check_dp_size(64, 8).ok());
  for (const std::int32_t dp_size : {0, -1, 3, 128}) EXPECT_EQ(check_dp_size(64, dp_size).reason(), Reason::kSettings);
  EXPECT_EQ(check_dp_size(0, 1).reason(), Reason::kSettings);
}

TEST(CheckDataSize, RefusesStepsLargerThanThePassUnlessFinite) {
  EXPECT_EQ(check_data_size(3, 8, false).reason(), Reason::kDataTooSmall);
  EXPECT_TRUE(check_data_size(3, 8, true).ok());
  EXPECT_TRUE(check_data_size(8, 8, false).ok());
}

}  // namespace
}  // namespace stoker

#include "plan/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <numeric>

#include "base/rng.h"
#include "plan/mixture_for_test.h"

namespace stoker {
namespace {

// Small integers only, so that a pinned plan is the same everywhere.
std::vector<PlanSample> drawn(std::uint64_t seed, std::size_t n, std::int64_t max_tokens, double usable_share = 1.0) {
  Rng rng(seed);
  std::vector<PlanSample> samples(n);
  for (std::size_t i = 0; i < n; ++i) {
    PlanSample& s = samples[i];
    s.order_index = i;
    s.tokens = 1 + static_cast<std::int64_t>(rng.next() % static_cast<std::uint64_t>(max_tokens));
    s.patches = rng.next() % 3 == 0 ? 0 : static_cast<std::int64_t>(rng.next() % 400);
    s.images = s.patches > 0 ? 1 : 0;
    s.target_tokens = s.tokens / 2;
    s.cost_language = CostModel{}.language(s.tokens);
    s.cost_vision = CostModel{}.vision(s.patches);
    s.usable = rng.uniform() < usable_share;
  }
  return samples;
}

WindowPlan planned(std::span<const PlanSample> samples, std::int64_t tokens_per_pack, std::uint64_t window = 0) {
  PackSettings settings;
  settings.tokens_per_pack = tokens_per_pack;
  auto plan = plan_window(window, samples, settings);
  EXPECT_TRUE(plan.ok()) << plan.status().to_string();
  return plan.ok() ? *std::move(plan) : WindowPlan{};
}

void expect_sound(const WindowPlan& plan, std::span<const PlanSample> samples, std::int64_t tokens_per_pack) {
  std::vector<int> n_seen(samples.size(), 0);
  for (const PackPlan& pack : plan.packs) {
    ASSERT_FALSE(pack.members.empty());
    EXPECT_TRUE(std::is_sorted(pack.members.begin(), pack.members.end()));
    PackPlan sums;
    for (const std::uint32_t i : pack.members) {
      ASSERT_LT(i, samples.size());
      ++n_seen[i];
      sums.tokens += samples[i].tokens;
      sums.target_tokens += samples[i].target_tokens;
      sums.patches += samples[i].patches;
      sums.images += samples[i].images;
      sums.cost_language += samples[i].cost_language;
      sums.cost_vision += samples[i].cost_vision;
    }
    EXPECT_LE(pack.tokens, tokens_per_pack);
    EXPECT_EQ(pack.tokens, sums.tokens);
    EXPECT_EQ(pack.target_tokens, sums.target_tokens);
    EXPECT_EQ(pack.patches, sums.patches);
    EXPECT_EQ(pack.images, sums.images);
    EXPECT_EQ(pack.cost_language, sums.cost_language);
    EXPECT_EQ(pack.cost_vision, sums.cost_vision);
  }
  for (std::size_t i = 0; i < samples.size(); ++i) EXPECT_EQ(n_seen[i], samples[i].usable ? 1 : 0) << i;
}

TEST(PlanWindow, EveryUsableSampleOnceAndNeverOverTheLimit) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    Rng rng(seed ^ 0xABCD);
    const auto n = static_cast<std::size_t>(rng.next() % 200);
    const auto limit = static_cast<std::int64_t>(1 + rng.next() % 1000);
    const auto samples = drawn(seed, n, limit, seed % 3 == 0 ? 0.6 : 1.0);
    expect_sound(planned(samples, limit), samples, limit);
    if (HasFatalFailure()) FAIL() << "seed " << seed;
  }
}

TEST(PlanWindow, ManyPacksInGroups) {
  const auto samples = drawn(4, 20000, 300, 0.9);
  expect_sound(planned(samples, 1024), samples, 1024);
}

TEST(PlanWindow, OnePackWhereAllFits) {
  const auto samples = drawn(5, 10, 100);
  EXPECT_EQ(planned(samples, 1000).packs.size(), 1U);
}

TEST(PlanWindow, CountsTheUnusable) {
  auto samples = drawn(6, 10, 100);
  for (const std::size_t i : {2U, 8U, 9U}) samples[i].usable = false;
  const WindowPlan plan = planned(samples, 1000);
  EXPECT_EQ(plan.n_samples, 10U);
  EXPECT_EQ(plan.n_usable, 7U);
  EXPECT_EQ(plan.n_trailing_unusable, 2U);
  for (auto& s : samples) s.usable = false;
  EXPECT_TRUE(planned(samples, 1000).packs.empty());
  EXPECT_EQ(planned(samples, 1000).n_trailing_unusable, 10U);
  EXPECT_TRUE(planned({}, 1000).packs.empty());
}

TEST(PlanWindow, RefusesWhatItCannotPack) {
  PackSettings settings;
  settings.tokens_per_pack = 100;
  for (const std::int64_t tokens : {std::int64_t{0}, std::int64_t{-1}, std::int64_t{101}}) {
    std::vector<PlanSample> one(1);
    one[0].tokens = tokens;
    EXPECT_EQ(plan_window(0, one, settings).status().reason(), Reason::kInternal) << tokens;
  }
  std::vector<PlanSample> dear(2);
  dear[0].tokens = dear[1].tokens = 1;
  dear[0].cost_vision = dear[1].cost_vision = std::int64_t{3} << 61;
  EXPECT_EQ(plan_window(0, dear, settings).status().reason(), Reason::kInternal);
  settings.tokens_per_pack = 0;
  EXPECT_EQ(plan_window(0, {}, settings).status().reason(), Reason::kSettings);
}

TEST(PlanWindow, LargeCostsDoNotOverflow) {
  std::vector<PlanSample> samples(64);
  for (std::size_t i = 0; i < samples.size(); ++i) {
    samples[i].tokens = i == 0 ? 1 : 100;
    samples[i].cost_vision = i == 0 ? std::int64_t{1} << 62 : 1;  // one sample has all the vision of the window
    samples[i].cost_language = std::int64_t{1} << 56;
  }
  expect_sound(planned(samples, 128), samples, 128);
}

TEST(PlanWindow, NeighboursAreAlikeAlsoAcrossWindows) {
  const auto samples = drawn(7, 400, 100);
  for (const std::uint64_t window : {0U, 1U}) {
    const WindowPlan plan = planned(samples, 512, window);
    EXPECT_TRUE(std::is_sorted(plan.packs.begin(), plan.packs.end(), [&](const PackPlan& a, const PackPlan& b) {
      return window == 0 ? a.cost() > b.cost() : a.cost() < b.cost();
    }));
  }
}

// If this fails, every user's run changes.
TEST(PlanWindow, LiteralPlan) {
  const auto samples = drawn(8, 12, 40);
  std::vector<std::vector<std::uint32_t>> packs;
  for (const PackPlan& pack : planned(samples, 64).packs) packs.push_back(pack.members);
  EXPECT_EQ(packs, (std::vector<std::vector<std::uint32_t>>{{0, 4, 8}, {5, 9, 10}, {2, 6}, {1, 3, 7}, {11}}));
  EXPECT_EQ(planned(drawn(9, 5000, 300), 1024, 3).digest(), "d8ee2017685e1fbedc3cb92e61609cf5");
}

TEST(PlanWindow, DigestSeesEveryMember) {
  auto samples = drawn(10, 50, 100);
  const std::string digest = planned(samples, 256).digest();
  EXPECT_EQ(planned(samples, 256).digest(), digest);
  EXPECT_NE(planned(samples, 256, 1).digest(), digest);
  ++samples[17].target_tokens;
  EXPECT_NE(planned(samples, 256).digest(), digest);
}

struct Balance {
  double total = 0;
  double vision = 0;
  double language = 0;
};

// Mean over steps of max / mean over ranks, one pack per rank and step.
Balance balance_of(const WindowPlan& plan, std::size_t dp) {
  Balance sum;
  std::size_t n_steps = 0;
  for (std::size_t first = 0; first + dp <= plan.packs.size(); first += dp, ++n_steps) {
    const auto ratio = [&](auto value) {
      double most = 0;
      double all = 0;
      for (std::size_t i = first; i < first + dp; ++i) {
        const auto v = static_cast<double>(value(plan.packs[i]));
        most = std::max(most, v);
        all += v;
      }
      return most * static_cast<double>(dp) / all;
    };
    sum.total += ratio([](const PackPlan& p) { return p.cost(); });
    sum.vision += ratio([](const PackPlan& p) { return p.cost_vision; });
    sum.language += ratio([](const PackPlan& p) { return p.cost_language; });
  }
  const auto n = static_cast<double>(std::max<std::size_t>(1, n_steps));
  return {sum.total / n, sum.vision / n, sum.language / n};
}

TEST(PlanWindow, MixtureIsNearFullAndEven) {
  constexpr std::int64_t kTokensPerPack = 16384;
  for (const std::size_t n : {2048U, 16384U, 100000U}) {
    const auto samples = Mixture(11).window(n);
    const std::clock_t begin = std::clock();  // processor time: other processes on the machine do not count
    const WindowPlan plan = planned(samples, kTokensPerPack);
    const double spent_ms = static_cast<double>(std::clock() - begin) * 1e3 / CLOCKS_PER_SEC;
    const auto tokens = std::accumulate(plan.packs.begin(), plan.packs.end(), std::int64_t{0},
                                        [](std::int64_t sum, const PackPlan& p) { return sum + p.tokens; });
    const double fill = static_cast<double>(tokens) / static_cast<double>(plan.packs.size() * kTokensPerPack);
    std::printf("%zu samples, %zu packs, %.1f ms, fill %.4f\n", n, plan.packs.size(), spent_ms, fill);
    EXPECT_GE(fill, 0.97);
    for (const std::size_t dp : {8U, 64U, 256U, 1024U}) {
      if (plan.packs.size() < 4 * dp)
        continue;  // a few samples are dearer than a pack should be: one step of them says little
      const Balance b = balance_of(plan, dp);
      std::printf("  DP %4zu: max/mean total %.3f language %.3f vision %.3f\n", dp, b.total, b.language, b.vision);
      EXPECT_LE(b.total, 1.05);
      EXPECT_LE(b.language, 1.15);
      EXPECT_LE(b.vision, 1.15);
    }
  }
}

}  // namespace
}  // namespace stoker

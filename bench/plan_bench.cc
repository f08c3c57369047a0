// What plan_window and assign_step make of a synthetic mixture, beside other ways of packing, as JSON lines: how even
// ranks are, how full packs are, how long planning takes. bench/plan.py says what for.

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <functional>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "plan/baselines.h"
#include "plan/forecast.h"
#include "plan/mixture_for_test.h"
#include "plan/padding.h"
#include "plan/step.h"

namespace stoker {
namespace {

constexpr std::size_t kSteps = 200;
constexpr std::uint64_t kSeed = 4;

using Planning = std::function<Result<WindowPlan>(std::uint64_t, std::span<const PlanSample>, const PackSettings&)>;

// What one way of packing gives so many ranks over kSteps steps.
struct Figures {
  RankForecast ranks;
  double fill = 0;     // tokens of samples / (packs * tokens_per_pack)
  double padding = 0;  // share of delivered positions that is no sample's
  double dummies = 0;  // packs with one / packs
};

// The packs of each step are assigned as `placement` says. Windows of `window` samples.
Figures figures_of(const Planning& planning, PackSettings settings, std::int32_t dp_size, std::int32_t n_micro,
                   Placement placement, std::size_t window) {
  settings.packs_per_step = dp_size * n_micro;
  Mixture mixture(kSeed);
  StepPlanner steps(settings.packs_per_step, UINT64_MAX);
  RankForecaster ranks(dp_size, placement);
  Figures out;
  std::int64_t tokens = 0, delivered = 0;
  std::size_t n_packs = 0, n_dummies = 0, n_steps = 0;
  while (n_steps < kSteps) {
    const std::uint64_t number = steps.next_window();
    std::vector<PlanSample> samples = mixture.window(window, number * window);
    for (PlanSample& s : samples) s.usable = s.usable && check_fits(settings, s).ok();
    auto plan = planning(number, samples, settings);
    if (!plan.ok()) {
      fmt::print(stderr, "{}\n", plan.status().to_string());
      std::exit(1);
    }
    for (const PackPlan& pack : plan->packs) {
      tokens += pack.tokens;
      delivered += pack.total_tokens;
      n_dummies += pack.needs_image_dummy || pack.needs_video_dummy ? 1 : 0;
    }
    n_packs += plan->packs.size();
    if (!steps.add(std::make_shared<WindowPlan>(*std::move(plan))).ok()) std::exit(1);
    while (auto step = steps.next()) {
      if (n_steps++ < kSteps) ranks.add(*step);
    }
  }
  out.ranks = ranks.forecast();
  out.fill = static_cast<double>(tokens) / static_cast<double>(n_packs) / static_cast<double>(settings.tokens_per_pack);
  out.padding = 1 - static_cast<double>(tokens) / static_cast<double>(delivered);
  out.dummies = static_cast<double>(n_dummies) / static_cast<double>(n_packs);
  return out;
}

void print(std::string_view name, std::int32_t dp_size, std::int32_t n_micro, const Figures& f) {
  fmt::print(
      "{{\"name\": \"{}\", \"dp_size\": {}, \"micro_batches\": {}, \"total\": {:.4f}, \"language\": {:.4f}, "
      "\"vision\": "
      "{:.4f}, \"fill\": {:.4f}, \"padding\": {:.4f}, \"dummies\": {:.4f}, \"lost_per_step\": {:.4f}, "
      "\"lost_per_phase\": {:.4f}}}\n",
      name, dp_size, n_micro, f.ranks.total.mean, f.ranks.language.mean, f.ranks.vision.mean, f.fill, f.padding,
      f.dummies, 1 - f.ranks.busy / f.ranks.per_step, 1 - f.ranks.busy / f.ranks.per_phase);
  std::fflush(stdout);
}

Planning baseline(Baseline how) {
  return [how](std::uint64_t window, std::span<const PlanSample> samples, const PackSettings& settings) {
    return plan_baseline(how, window, samples, settings);
  };
}

// Largest first on FLOPs: dearest samples first, each to the cheapest pack with room.
Result<WindowPlan> dearest_first(std::uint64_t window, std::span<const PlanSample> samples,
                                 const PackSettings& settings) {
  std::vector<std::uint32_t> order;
  std::int64_t tokens = 0;
  for (std::uint32_t i = 0; i < samples.size(); ++i) {
    if (!samples[i].usable) continue;
    order.push_back(i);
    tokens += samples[i].tokens;
  }
  const auto cost = [&](std::uint32_t i) { return samples[i].cost_language + samples[i].cost_vision; };
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) { return cost(a) > cost(b); });
  const std::int64_t room = settings.tokens_per_pack;
  std::vector<PackPlan> packs(static_cast<std::size_t>((tokens * 1000 / 970 + room - 1) / room));
  for (const std::uint32_t i : order) {
    PackPlan* best = nullptr;
    for (PackPlan& pack : packs) {
      if (pack.tokens + samples[i].tokens <= room && (best == nullptr || pack.cost() < best->cost())) best = &pack;
    }
    if (best == nullptr) best = &packs.emplace_back();
    best->members.push_back(i);
    best->tokens += samples[i].tokens;
    best->total_tokens = best->tokens;
    best->target_tokens += samples[i].target_tokens;
    best->cost_language += samples[i].cost_language;
    best->cost_vision += samples[i].cost_vision;
  }
  std::erase_if(packs, [](const PackPlan& pack) { return pack.members.empty(); });
  return WindowPlan{.window = window, .packs = std::move(packs), .n_samples = samples.size(), .n_usable = order.size()};
}

double cpu_ms(const std::function<void()>& work) {
  double least = 1e9;
  for (int round = 0; round < 5; ++round) {
    const std::clock_t begin = std::clock();
    work();
    least = std::min(least, static_cast<double>(std::clock() - begin) * 1e3 / CLOCKS_PER_SEC);
  }
  return least;
}

void compare() {
  const std::size_t window = 65536;
  const std::pair<const char*, Planning> ways[] = {{"random, equal counts", baseline(Baseline::kEqualCounts)},
                                                   {"concatenation", baseline(Baseline::kConcatenate)},
                                                   {"first fit", baseline(Baseline::kFirstFit)},
                                                   {"largest first, tokens", baseline(Baseline::kLargestFirst)},
                                                   {"largest first, FLOPs", dearest_first}};
  for (const std::int32_t dp_size : {8, 64, 256, 1024}) {
    for (const auto& [name, planning] : ways) {
      const std::size_t n = name == std::string_view("largest first, FLOPs") ? 2048 : window;
      print(name, dp_size, 1, figures_of(planning, {}, dp_size, 1, Placement::kInOrder, n));
    }
    print("ours", dp_size, 1, figures_of(plan_window, {}, dp_size, 1, Placement::kBalanced, window));
  }
  for (const std::int32_t n_micro : {2, 4}) {
    for (const std::int32_t dp_size : {8, 64, 256}) {
      print("concatenation", dp_size, n_micro,
            figures_of(baseline(Baseline::kConcatenate), {}, dp_size, n_micro, Placement::kInOrder, window));
      print("ours", dp_size, n_micro, figures_of(plan_window, {}, dp_size, n_micro, Placement::kBalanced, window));
    }
  }
}

void variants() {
  const auto variant = [](const char* name, const PackSettings& settings) {
    print(name, 64, 1, figures_of(plan_window, settings, 64, 1, Placement::kBalanced, 16384));
  };
  PackSettings s;
  for (const std::int32_t dp_size : {64, 256}) {
    for (const std::size_t window : {1024U, 4096U, 16384U}) {
      print(fmt::format("window of {} samples", window), dp_size, 1,
            figures_of(plan_window, s, dp_size, 1, Placement::kBalanced, window));
    }
  }
  variant("default", s);
  s.align_samples_to = 16;
  variant("aligned to 16", s);
  s.align_samples_to = 128;
  variant("aligned to 128", s);
  s = {};
  s.pad_to = 512;
  variant("padded to 512", s);
  s.pad_to = s.tokens_per_pack;
  variant("padded to tokens_per_pack", s);
  s = {};
  s.vision_uniform = VisionUniform::kImage;
  variant("uniform image", s);
  s.vision_uniform = VisionUniform::kImageAndVideo;
  variant("uniform image+video", s);
  s = {};
  s.max_patches = 49152;
  variant("at most 49,152 patches", s);
  s.max_images = 16;
  variant("and 16 images", s);
  s = {};
  s.balance = PackBalance::kTokens;
  variant("balance tokens", s);
  s.balance = PackBalance::kNone;
  variant("balance none", s);
  s = {};
  s.form = PackForm::kSamples;
  s.samples_per_pack = 8;
  variant("8 samples", s);
  s.samples_per_pack = 1;
  variant("1 sample", s);
  s.form = PackForm::kTokenBudget;
  variant("token budget", s);
}

void speed() {
  for (const std::size_t n : {std::size_t{1024}, std::size_t{100000}}) {
    const std::vector<PlanSample> samples = Mixture(kSeed).window(n);
    const auto timed = [&](const char* name, const PackSettings& settings) {
      const double ms = cpu_ms([&] {
        if (!plan_window(0, samples, settings).ok()) std::exit(1);
      });
      fmt::print("{{\"name\": \"plan {} samples, {}\", \"ms\": {:.3f}}}\n", n, name, ms);
    };
    timed("default", {});
    timed("uniform image+video", {.vision_uniform = VisionUniform::kImageAndVideo});
    timed("8 samples", {.form = PackForm::kSamples, .samples_per_pack = 8});
    timed("token budget", {.form = PackForm::kTokenBudget});
  }
  for (const auto& [dp_size, n_micro] : {std::pair(64, 4), std::pair(1024, 1), std::pair(1024, 4)}) {
    std::vector<PhaseCosts> costs;
    Rng rng(kSeed);
    for (int i = 0; i < dp_size * n_micro; ++i) {
      costs.push_back(
          {static_cast<std::int64_t>(9e8 + 1e8 * rng.uniform()), static_cast<std::int64_t>(3e8 * rng.uniform())});
    }
    const double ms = cpu_ms([&costs, n = dp_size] { assign_step(costs, n); });
    fmt::print("{{\"name\": \"assign {} x {}\", \"ms\": {:.3f}}}\n", dp_size, n_micro, ms);
  }
}

}  // namespace
}  // namespace stoker

int main(int argc, char** argv) {
  const std::string_view part = argc > 1 ? argv[1] : "";
  if (part == "compare") stoker::compare();
  if (part == "variants") stoker::variants();
  if (part == "speed") stoker::speed();
  if (part != "compare" && part != "variants" && part != "speed") {
    fmt::print(stderr, "plan_bench compare|variants|speed\n");
    return 2;
  }
}

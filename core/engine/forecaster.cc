#include "engine/forecaster.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "pipeline/planner.h"
#include "pipeline/sample_steps.h"
#include "plan/baselines.h"
#include "plan/step.h"

namespace stoker {
namespace {

struct PolicyFacts {
  PackPolicy policy;
  const char* name;
  std::optional<PackBalance> balance = {};    // in place of the settings'
  std::optional<Baseline> baseline = {};      // in place of plan_window
  Placement placement = Placement::kInOrder;  // of packs on ranks
};
constexpr PolicyFacts kPolicies[] = {
    {PackPolicy::kAsSet, "as set", {}, {}, Placement::kBalanced},
    {PackPolicy::kBalanceFlops, "balance: flops", PackBalance::kFlops, {}, Placement::kBalanced},
    {PackPolicy::kBalanceTokens, "balance: tokens", PackBalance::kTokens, {}, Placement::kBalanced},
    {PackPolicy::kBalanceNone, "balance: none", PackBalance::kNone, {}, Placement::kBalanced},
    {PackPolicy::kPlacedInOrder, "dealt in order"},
    {PackPolicy::kLargestFirst, "largest first", {}, Baseline::kLargestFirst},
    {PackPolicy::kFirstFit, "first fit", {}, Baseline::kFirstFit},
    {PackPolicy::kConcatenated, "as they come", {}, Baseline::kConcatenate},
    {PackPolicy::kEqualCounts, "equal counts", {}, Baseline::kEqualCounts},
};

const PolicyFacts& facts_of(PackPolicy policy) { return kPolicies[static_cast<std::size_t>(policy)]; }

std::vector<PackPolicy> policies_of(const ForecastOptions& options, const PackSettings& settings) {
  if (!options.compares) return {PackPolicy::kAsSet};
  std::vector<PackPolicy> out;
  for (const PolicyFacts& facts : kPolicies) {
    if (facts.balance == settings.balance || (facts.baseline && settings.form != PackForm::kPacked)) continue;
    out.push_back(facts.policy);
  }
  return out;
}

PackSettings settings_for(PackPolicy policy, PackSettings settings) {
  settings.balance = facts_of(policy).balance.value_or(settings.balance);
  return settings;
}

std::int64_t unsized_media(const MeasuredSample& sample) {
  std::int64_t n = 0;
  for (const MeasuredImage& image : sample.images) n += image.is_planned() ? 0 : 1;
  for (const MeasuredClip& clip : sample.clips) n += clip.is_planned() ? 0 : 1;
  return n;
}

}  // namespace

const char* name_of(PackPolicy policy) { return facts_of(policy).name; }

/// One policy's steps under way.
class Forecaster::Planned {
 public:
  Planned(PackPolicy policy, const PackSettings& settings, const ForecastOptions& options, std::uint64_t n_per_epoch)
      : settings_(settings_for(policy, settings)),
        n_steps_wanted_(options.n_steps),
        steps_(settings.packs_per_step, n_per_epoch) {
    sums_.policy = policy;
    for (const std::int32_t dp_size : options.dp_sizes) {
      ranks_.emplace_back(dp_size, facts_of(policy).placement);
    }
  }

  bool has_enough() const { return n_steps_wanted_ && n_steps_ >= *n_steps_wanted_; }
  std::int64_t n_steps() const { return n_steps_; }

  Status add(std::uint64_t window, std::span<const PlanSample> samples) {
    const std::optional<Baseline> baseline = facts_of(sums_.policy).baseline;
    STOKER_TRY(WindowPlan plan, baseline ? plan_baseline(*baseline, window, samples, settings_)
                                         : plan_window(window, samples, settings_));
    for (const PackPlan& pack : plan.packs) {
      ++sums_.n_packs;
      sums_.n_samples += static_cast<std::int64_t>(pack.members.size());
      sums_.tokens += pack.tokens;
      sums_.padded_tokens += pack.total_tokens;
      sums_.target_tokens += pack.target_tokens;
      sums_.patches += pack.patches;
      sums_.images += pack.images;
      sums_.clips += pack.videos;
      sums_.n_with_dummy += pack.needs_image_dummy || pack.needs_video_dummy ? 1 : 0;
      sums_.pack_tokens.add(pack.tokens);
    }
    STOKER_CHECKED(steps_.add(std::make_shared<const WindowPlan>(std::move(plan))));
    cut_steps();
    return {};
  }
  void finish() {
    steps_.finish();
    cut_steps();
  }
  PackForecast forecast() const {
    PackForecast out = sums_;
    for (const RankForecaster& ranks : ranks_) out.ranks.push_back(ranks.forecast());
    return out;
  }

 private:
  void cut_steps() {
    while (!has_enough()) {
      const std::optional<StepPlan> step = steps_.next();
      if (!step) return;
      ++n_steps_;
      for (const StepPack& pack : step->packs) sums_.n_empty += pack.is_dummy() ? 1 : 0;
      for (RankForecaster& ranks : ranks_) ranks.add(*step);
    }
  }

  const PackSettings settings_;
  const std::optional<std::int64_t> n_steps_wanted_;
  StepPlanner steps_;
  std::vector<RankForecaster> ranks_;
  PackForecast sums_;
  std::int64_t n_steps_ = 0;
};

Forecaster::Forecaster(LoaderSettings settings, ForecastOptions options, const Clock& clock)
    : options_(std::move(options)), walk_(std::move(settings), clock) {}

Result<std::unique_ptr<Forecaster>> Forecaster::create(LoaderSettings settings, ForecastOptions options,
                                                       const Clock& clock) {
  for (const std::int32_t dp_size : options.dp_sizes) {
    STOKER_CHECKED(check_dp_size(settings.output.pack.packs_per_step, dp_size));
  }
  // What an epoch is takes the number of rows, which chunks do without; their windows are much like these.
  if (settings.output.shuffle == Shuffle::kChunked) settings.output.shuffle = Shuffle::kRows;
  std::unique_ptr<Forecaster> forecaster(new Forecaster(std::move(settings), std::move(options), clock));
  Forecaster* const raw = forecaster.get();
  STOKER_CHECKED(forecaster->walk_.start("stoker-plan", [raw](std::stop_token stop) { return raw->work(stop); }));
  return forecaster;
}

Status Forecaster::work(std::stop_token stop) {
  walk_.use_index(stop);
  const Order& order = walk_.dataset().order();
  const PackSettings& pack = walk_.settings().output.pack;
  const auto per_window = static_cast<std::uint64_t>(walk_.settings().output.window_samples);
  const std::uint64_t n_per_epoch = order.rows_per_pass();
  STOKER_CHECKED(check_data_size(n_per_epoch, pack.packs_per_step, order.size().has_value()));
  // Windows of an endless order run on into the next epoch: the last is planned whole, as a run plans it.
  const std::uint64_t n_all = order.size().value_or(UINT64_MAX / 2);
  std::uint64_t n_wanted = n_all;
  if (options_.n_epochs) {
    n_wanted = n_per_epoch * static_cast<std::uint64_t>(*options_.n_epochs);
    n_wanted = std::min(n_all, (n_wanted + per_window - 1) / per_window * per_window);
  }
  std::vector<Planned> policies;
  for (const PackPolicy policy : policies_of(options_, pack))
    policies.emplace_back(policy, pack, options_, n_per_epoch);
  {
    MutexLock lock(mu_);
    report_.n_positions_at_most = n_wanted;
    report_.n_per_epoch = n_per_epoch;
    report_.is_finite = order.size().has_value();
  }
  MeasureOptions measure{.headers = [this](std::uint64_t) {
    return options_.reads_headers ? HeaderReads::kAsNeeded : HeaderReads::kNone;
  }};
  RejectedRowCounter rejected("", 0);
  const auto visit = [&](const MeasuredWindow& window) -> Result<bool> {
    STOKER_CHECKED(rejected.add(window, walk_.dataset()));
    count(window);
    const std::vector<PlanSample> samples = plan_samples(window, cost_of(walk_.settings().output, walk_.model()));
    bool has_enough = true, has_step = true;
    for (Planned& policy : policies) {
      STOKER_CHECKED(policy.add(window.window, samples));
      has_enough = has_enough && policy.has_enough();
      has_step = has_step && policy.n_steps() > 0;
    }
    MutexLock lock(mu_);
    report_.rejected = rejected.so_far();
    report_.n_steps = policies.front().n_steps();
    return !has_enough && !(has_step && report_.n_positions >= n_wanted);
  };
  STOKER_CHECKED(walk_.each_window(std::move(measure), visit, std::move(stop)));
  {
    MutexLock lock(mu_);
    for (Planned& policy : policies) {
      if (report_.n_positions == order.size()) policy.finish();
    }
  }
  count_steps(policies);
  return {};
}

void Forecaster::count(const MeasuredWindow& window) {
  MutexLock lock(mu_);
  for (const MeasuredSample& sample : window.samples) {
    ++report_.n_positions;
    report_.n_known += sample.from == LengthsFrom::kIndex ? 1 : 0;
    const bool is_over_long = sample.bad.reason() == Reason::kSeqTooLong;
    if (!sample.bad.ok() && !is_over_long) continue;
    const std::int64_t n_unsized = unsized_media(sample);
    report_.n_unsized += n_unsized > 0 ? 1 : 0;
    report_.n_unsized_media += n_unsized;
    report_.n_over_long += is_over_long ? 1 : 0;
    report_.n_cut += sample.is_truncated ? 1 : 0;
    if (!is_over_long) report_.tokens.add(sample.tokens);

    auto& longest = report_.longest;
    if (longest.size() == options_.n_longest && (longest.empty() || sample.tokens <= longest.back().tokens)) continue;
    const Manifest& manifest = walk_.dataset().manifest(sample.entry.source);
    LongSample named{.manifest = walk_.dataset().name(sample.entry.source),
                     .line = manifest.row(sample.entry.row).line,
                     .tokens = sample.tokens,
                     .images = static_cast<std::int64_t>(sample.images.size()),
                     .clips = static_cast<std::int64_t>(sample.clips.size()),
                     .fate = is_over_long          ? LongSample::Fate::kDropped
                             : sample.is_truncated ? LongSample::Fate::kCut
                                                   : LongSample::Fate::kKept};
    const auto is_known = [&](const LongSample& l) { return l.line == named.line && l.manifest == named.manifest; };
    if (std::any_of(longest.begin(), longest.end(), is_known)) continue;  // a row comes again in a later pass
    if (longest.size() == options_.n_longest) longest.pop_back();
    const auto at = std::upper_bound(longest.begin(), longest.end(), named,
                                     [](const LongSample& a, const LongSample& b) { return a.tokens > b.tokens; });
    longest.insert(at, std::move(named));
  }
}

void Forecaster::count_steps(const std::vector<Planned>& policies) {
  MutexLock lock(mu_);
  report_.n_steps = policies.front().n_steps();
  for (const Planned& policy : policies) report_.policies.push_back(policy.forecast());
}

ForecastReport Forecaster::report() const {
  ForecastReport out;
  {
    MutexLock lock(mu_);
    out = report_;
  }
  out.elapsed_s = walk_.elapsed_s();
  return out;
}

}  // namespace stoker

#include "pipeline/planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "plan/plan.h"

namespace stoker {
namespace {

/// Smaller is more urgent: windows in order, and in a window its measuring (0) before its packs (1, 2, ...).
std::uint64_t urgency(std::uint64_t window, std::uint64_t pack) { return (window << 24) + pack; }

}  // namespace

std::vector<PlanSample> plan_samples(const MeasuredWindow& window, const CostModel& cost) {
  std::vector<PlanSample> out;
  out.reserve(window.samples.size());
  for (const MeasuredSample& s : window.samples) {
    PlanSample p{.order_index = s.order_index, .tokens = s.tokens, .target_tokens = s.n_trained, .usable = s.bad.ok()};
    if (p.usable) {
      p.images = static_cast<std::int32_t>(s.images.size());
      p.videos = static_cast<std::int32_t>(s.clips.size());
      p.cost_language = cost.language(s.tokens);
      for (const MeasuredImage& image : s.images) {
        p.patches += image.plan.n_patches();
        p.cost_vision += cost.vision(image.plan.n_patches());
      }
      for (const MeasuredClip& clip : s.clips) {
        p.patches += clip.plan.n_patches();
        // The vision tower attends inside each temporal patch.
        for (std::int32_t t = 0; t < clip.plan.grid_t; ++t) p.cost_vision += cost.vision(clip.plan.patches_per_time());
      }
    }
    out.push_back(p);
  }
  return out;
}

Planner::Planner(const LoaderSettings& settings, const CostModel& cost, const Dataset& dataset, Measurer& measurer,
                 RunExchange& exchange, StepGate& gate, PlanState start, RankSpan ranks, const Clock& clock)
    : settings_(settings),
      cost_(cost),
      ranks_(ranks),
      dataset_(dataset),
      measurer_(measurer),
      exchange_(exchange),
      gate_(gate),
      clock_time_(clock),
      steps_(settings.output.pack.packs_per_step, dataset.rows_per_pass(), start, dataset.windows_per_pass()),
      start_(std::move(start)) {}

Status Planner::run(const Hand& hand, std::stop_token stop) {
  auto next_step = static_cast<std::int64_t>(start_.step);
  STOKER_CHECKED(exchange_.open(stop));
  while (!steps_.is_at_end()) {
    std::optional<StepPlan> step = steps_.next();
    if (!step) {
      if (steps_.is_at_end()) break;
      // One window ahead of what may be prepared, so that measuring it costs the trainer no wait; none ahead without
      // prefetch.
      const std::int64_t ahead = gate_.prefetch_steps() == 0 ? 0 : steps_in_last_window_;
      {
        const Timed waiting(stage_.wait_out_ns, clock_time_);
        if (!gate_.pass(next_step - ahead, stop)) return Status(Reason::kStopped, "stopped");
      }
      const std::uint64_t window = steps_.next_window();
      if (window >= dataset_.n_windows()) {
        steps_.finish();
      } else {
        STOKER_CHECKED(add_window(window, stop));
      }
      continue;
    }
    next_step = static_cast<std::int64_t>(step->step()) + 1;
    const std::vector<PackPlace> places = step->places(settings_.dp_size);
    std::vector<std::size_t> order;  // of those packs that are handed on
    for (std::size_t i = 0; i < places.size(); ++i) {
      if (ranks_.has(places[i].rank)) order.push_back(i);
    }
    std::sort(order.begin(), order.end(), [&places](std::size_t a, std::size_t b) {
      return std::tie(places[a].micro_batch, places[a].rank) < std::tie(places[b].micro_batch, places[b].rank);
    });
    for (const std::size_t pack : order) {
      PackTask task = task_for(*step, pack, places[pack]);
      const Timed waiting(stage_.wait_out_ns, clock_time_);
      if (!hand(std::move(task))) return Status(Reason::kStopped, "stopped");
    }
    // Windows that no later pack comes from are let go; packs under way hold theirs.
    measured_.erase(measured_.begin(), measured_.lower_bound(step->after.window));
    // Ranks meet in every step: another is behind by what this one prefetched, and a little.
    exchange_.handed_on(step->step(), step->before.window,
                        static_cast<std::uint64_t>(gate_.prefetch_steps() + steps_in_last_window_ + 4), stop);
  }
  return {};
}

Status Planner::add_window(std::uint64_t window, std::stop_token stop) {
  STOKER_TRY(const OrderWindow places, [&] {
    const Timed waiting(stage_.wait_in_ns, clock_time_);
    return dataset_.window(window, stop);
  }());
  auto measured = [&] {
    const Timed waiting(stage_.wait_in_ns, clock_time_);
    return exchange_.measure(measurer_, places, urgency(window, 0), stop);
  }();
  if (!measured.ok()) return std::move(measured).status();
  const Timed busy(stage_.busy_ns, clock_time_);
  STOKER_CHECKED(check_bad(**measured, places.n_until_end));
  STOKER_TRY(WindowPlan plan, plan_window(window, plan_samples(**measured, cost_), settings_.output.pack));
  STOKER_CHECKED(exchange_.check(window, plan.digest(), stop));
  steps_in_last_window_ = static_cast<std::int64_t>(plan.packs.size()) / settings_.output.pack.packs_per_step + 1;
  measured_[window] = std::move(measured).value();
  stage_.items.add(1);
  return steps_.add(std::make_shared<const WindowPlan>(std::move(plan)));
}

Status Planner::check_bad(const MeasuredWindow& window, std::uint64_t n_until_end) {
  for (const MeasuredSample& s : window.samples) {
    n_planned_.add(1);
    if (s.bad.ok()) continue;
    n_bad_.add(1);
    // Every rank measures; one of them writes the line.
    if (ranks_.has(static_cast<std::int32_t>(s.order_index % static_cast<std::uint64_t>(settings_.dp_size)))) {
      planned_around_.push_back(
          {.order_index = s.order_index, .entry = s.entry, .media = s.bad_media, .status = s.bad});
    }
    if (settings_.bad_samples.policy == BadSamplePolicy::kStop) {
      Status status = s.bad;
      const std::string where = dataset_.manifest(s.entry.source).describe(s.entry.row);
      return std::move(status).with(s.bad_media.empty() ? where : where + ": " + s.bad_media);
    }
  }
  // Of the whole run, not of what was planned since a resume: a run that went on must not end because it was resumed.
  const std::int64_t bad = n_bad_.get();
  // Where nobody counted the rows that number is an estimate, and what was planned may be more.
  const std::int64_t all = std::max(static_cast<std::int64_t>(n_until_end), n_planned_.get());
  if (static_cast<double>(bad) > settings_.bad_samples.max_fraction * static_cast<double>(all)) {
    std::string first;
    for (const MeasuredSample& s : window.samples) {
      if (!s.bad.ok()) {
        first = fmt::format("; for example {}: {}", dataset_.manifest(s.entry.source).describe(s.entry.row),
                            s.bad.to_string());
        break;
      }
    }
    return Status(Reason::kTooManyBad, fmt::format("{} of {} samples cannot be used, bad_samples.max_fraction is {}{}",
                                                   bad, all, settings_.bad_samples.max_fraction, first));
  }
  return {};
}

PackTask Planner::task_for(const StepPlan& step, std::size_t pack, PackPlace place) {
  const std::int32_t n_micro_batches = settings_.output.pack.packs_per_step / settings_.dp_size;
  PackTask task;
  task.sequence = next_sequence_++;
  task.rank = place.rank;
  task.is_last_of_step = place.micro_batch + 1 == n_micro_batches;
  task.state_before = step.before;
  task.state_after = step.after;
  task.counts.step = static_cast<std::int64_t>(step.step());
  task.counts.micro_batch = place.micro_batch;
  task.counts.micro_batches_in_step = n_micro_batches;
  task.counts.step_target_tokens = step.target_tokens;
  task.planned_around = std::exchange(planned_around_, {});
  const StepPack& chosen = step.packs[pack];
  if (chosen.is_dummy()) {
    task.priority = urgency(step.after.window, 1 << 20);
    return task;
  }
  const PackPlan& plan = chosen.plan();
  task.window = measured_.at(chosen.window->window);
  task.members = plan.members;
  task.counts.cost = plan.cost();
  task.priority = urgency(chosen.window->window, chosen.pack + 1);
  return task;
}

}  // namespace stoker

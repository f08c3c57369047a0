#include "pipeline/plan_stage.h"

#include <utility>

#include "exec/cpu.h"
#include "pipeline/sample_steps.h"

namespace stoker {

PlanStage::PlanStage(const LoaderSettings& settings, const Dataset& dataset,
                     std::shared_ptr<const qwen_vl::QwenVl> model, KnownLengths* known, Fetcher& fetcher,
                     WorkerPool& workers, std::string fingerprint, const PlanState& start, Options options,
                     const Clock& clock)
    : gate_(static_cast<std::int64_t>(start.step), settings.speed.prefetch_steps),
      measurer_(settings, dataset, model, fetcher, workers,
                {.max_whole_bytes = options.max_whole_bytes,
                 .headers_refused = std::move(options.headers_refused),
                 .keeps_text = options.keeps_text,
                 .known = known,
                 // A run that goes on must plan as it did before.
                 .looks_again = start == PlanState{}}),
      exchange_(settings, std::move(fingerprint), start, clock),
      planner_(settings, cost_of(settings.output, *model), dataset, measurer_, exchange_, gate_, start, options.ranks,
               clock),
      planned_(options.max_queued, clock) {}

void PlanStage::begin(Ended ended) {
  thread_ = std::jthread([this, ended = std::move(ended)](const std::stop_token& stop) {
    become_background_thread("stoker-plan");
    run(ended, stop);
  });
}

void PlanStage::run(const Ended& ended, const std::stop_token& stop) {
  std::uint64_t n_packs = 0;
  Status status = planner_.run(
      [&](PackTask task) {
        ++n_packs;
        return planned_.push(std::move(task), stop);
      },
      stop);
  if (status.code() == Code::kCancelled) return;
  ended({std::move(status), n_packs, planner_.take_planned_around()});
  planned_.close();
}

std::optional<PackTask> PlanStage::pop_wanted_within(std::chrono::milliseconds timeout) {
  const auto until = std::chrono::steady_clock::now() + timeout;
  const auto left = [&] {
    return std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
  };
  if (!held_) held_ = planned_.pop_within(left());
  if (!held_ || !gate_.pass_within(held_->counts.step, left(), thread_.get_stop_token())) return std::nullopt;
  return std::exchange(held_, std::nullopt);
}

void PlanStage::stop() {
  thread_.request_stop();
  planned_.close();
  if (thread_.joinable()) thread_.join();
  exchange_.close();
}

void PlanStage::tell(PipelineSnapshot& to) const {
  const StageClock& clock = planner_.clock();
  to.windows_planned = clock.items.get();
  to.samples_planned = planner_.n_planned();
  to.samples_planned_bad = planner_.n_planned_bad();
  to.plan_busy_s = to_seconds(Nanos(clock.busy_ns.get()));
  to.plan_wait_measure_s = to_seconds(Nanos(clock.wait_in_ns.get()));
  to.plan_wait_queue_s = to_seconds(Nanos(clock.wait_out_ns.get()));
  to.header_probes = measurer_.n_probes();
  to.header_bytes = measurer_.n_probe_bytes();
  to.samples_recalled = measurer_.n_recalled();
  to.samples_truncated = measurer_.n_truncated();
  to.content_control_literals = measurer_.n_control_literals();
  to.mean_planned_packs = to_seconds(Nanos(planned_.occupancy_integral())) / to.elapsed_s;
}

}  // namespace stoker

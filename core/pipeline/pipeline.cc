#include "pipeline/pipeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "exec/cpu.h"
#include "pipeline/sample_steps.h"

namespace stoker {
namespace {

// Of the memory limit: small objects that came whole with their headers, while their packs are not yet admitted.
constexpr std::size_t kWholeShare = 64;

}  // namespace

Pipeline::Pipeline(const LoaderSettings& settings, const Dataset& dataset, std::shared_ptr<const qwen_vl::QwenVl> model,
                   KnownLengths* known, std::unique_ptr<Fetcher> fetcher, std::string fingerprint, PlanState start,
                   const Clock& clock)
    : clock_(clock),
      template_stage_(settings.template_stage),
      began_(clock.now()),
      budget_(std::make_shared<MemoryBudget>(
          MemoryShares::of(settings, largest_block(settings.output.pack, model->config())).blocks)),
      blocks_(std::make_shared<BlockPool>(budget_,
                                          settings.peers.count > 1 ? BlockSharing::kShared : BlockSharing::kPrivate)),
      fetcher_(std::move(fetcher)),
      workers_(settings.speed.cpu_threads, "stoker-cpu", clock),
      gate_(static_cast<std::int64_t>(start.step), settings.speed.prefetch_steps),
      measurer_(settings, dataset, model, *fetcher_, workers_,
                {.max_whole_bytes = settings.speed.memory_limit_bytes / kWholeShare,
                 .headers_refused = headers_refused(settings),
                 .known = known,
                 // A run that goes on must plan as it did before.
                 .looks_again = start == PlanState{}}),
      exchange_(settings, std::move(fingerprint), start, clock),
      planner_(settings, cost_of(settings.output, *model), dataset, measurer_, exchange_, gate_, start, clock),
      preparer_(
          settings, dataset, model, known, blocks_, *fetcher_, workers_, clock,
          [this](ReadyPack pack) { pack_done(std::move(pack)); },
          [this](Status status) { end_with(std::move(status)); }),
      planned_(static_cast<std::size_t>(std::max(1, settings.output.pack.packs_per_step / settings.dp_size)), clock) {
  planner_thread_ = std::jthread([this] { run_planner(stop_.get_token()); });
  admission_thread_ = std::jthread([this] { run_admission(stop_.get_token()); });
}

void Pipeline::run_planner(std::stop_token stop) {
  become_background_thread("stoker-plan");
  std::uint64_t n_packs = 0;
  Status status = planner_.run(
      [&](PackTask task) {
        ++n_packs;
        return planned_.push(std::move(task), stop);
      },
      stop);
  if (status.code() == Code::kCancelled) return;
  MutexLock lock(mu_);
  n_packs_ = n_packs;
  planning_ended_ = std::move(status);
  left_over_ = planner_.take_planned_around();
  changed_.notify_all();
}

void Pipeline::run_admission(std::stop_token stop) {
  become_background_thread("stoker-admit");
  for (;;) {
    auto task = planned_.pop(stop);
    if (!task) return;
    {
      const Timed waiting(gate_clock_.wait_out_ns, clock_);
      if (!gate_.pass(task->counts.step, stop)) return;
    }
    if (Status status = preparer_.admit(std::move(*task), stop); !status.ok()) return end_with(std::move(status));
  }
}

void Pipeline::pack_done(ReadyPack pack) {
  finished_.add(1);
  MutexLock lock(mu_);
  const std::uint64_t sequence = pack.task.sequence;
  ready_.emplace(sequence, std::move(pack));
  ready_occupancy_.changed(static_cast<std::int64_t>(ready_.size()), clock_.now());
  changed_.notify_all();
}

void Pipeline::end_with(Status status) {
  if (status.code() == Code::kCancelled && stop_.stop_requested()) return;
  MutexLock lock(mu_);
  if (ended_.ok()) ended_ = std::move(status);
  changed_.notify_all();
}

Result<std::optional<ReadyPack>> Pipeline::take_within(std::chrono::milliseconds timeout) {
  MutexLock lock(mu_);
  changed_.wait_for(lock, stop_.get_token(), timeout, [&]() STOKER_NO_ANALYSIS {
    return ready_.contains(next_sequence_) || !ended_.ok() || (n_packs_ && *n_packs_ == next_sequence_);
  });
  const auto found = ready_.find(next_sequence_);
  if (found != ready_.end()) {  // what is finished is delivered, even if the run cannot go on after it
    std::optional<ReadyPack> pack(std::move(found->second));
    ready_.erase(found);
    ready_occupancy_.changed(static_cast<std::int64_t>(ready_.size()), clock_.now());
    ++next_sequence_;
    return pack;
  }
  if (stop_.stop_requested()) return Status(Reason::kStopped, "the loader was closed");
  if (n_packs_ && *n_packs_ == next_sequence_) {
    if (!planning_ended_.ok()) return planning_ended_;
    is_at_end_ = true;
    return std::optional<ReadyPack>();
  }
  if (!ended_.ok()) return ended_;
  return std::optional<ReadyPack>();
}

std::vector<LedgerEntry> Pipeline::take_left_over() {
  MutexLock lock(mu_);
  if (!n_packs_ || *n_packs_ != next_sequence_) return {};
  return std::exchange(left_over_, {});
}

bool Pipeline::waits_for_held_memory() const {
  const std::int64_t n_admitted = preparer_.admit_clock().items.get();
  return budget_->n_waiting() > 0 && finished_.get() == n_admitted &&
         static_cast<std::uint64_t>(n_admitted) == next_sequence_;
}

std::string Pipeline::waits_for() const {
  const bool is_preparing = preparer_.admit_clock().items.get() > finished_.get();
  const std::optional<PendingFetch> fetch = fetcher_->first_pending();
  if (fetch) {
    return fmt::format("{}: {}, asked for {:.0f} s ago ({} requests have no answer yet)",
                       is_preparing ? "stage fetch" : "stage plan, which reads headers and rows", fetch->url,
                       to_seconds(clock_.now() - fetch->since), fetch->n_pending);
  }
  if (is_preparing) return "stage prepare: everything is fetched, the CPU threads decode";
  if (budget_->n_waiting() > 0) return "stage admit: no memory is free";
  return "stage plan: no request is under way from here; perhaps other ranks have not told what they measure";
}

void Pipeline::stop() {
  MutexLock lock(stop_mu_);
  stop_.request_stop();
  if (planner_thread_.joinable()) planner_thread_.join();
  if (admission_thread_.joinable()) admission_thread_.join();
  exchange_.close();
  preparer_.close();
  fetcher_->stop();
  workers_.stop();
  if (stopped_ns_ == 0) stopped_ns_ = clock_.now().count();
  blocks_->close();
  std::map<std::uint64_t, ReadyPack> dropped;
  MutexLock ready_lock(mu_);
  dropped.swap(ready_);
}

PipelineSnapshot Pipeline::snapshot() const {
  PipelineSnapshot s;
  auto seconds = [](const Counter& c) { return static_cast<double>(c.get()) * 1e-9; };
  const std::int64_t until = stopped_ns_ != 0 ? stopped_ns_.load() : clock_.now().count();
  const auto elapsed_ns = static_cast<double>(std::max<std::int64_t>(until - began_.count(), 1));
  s.elapsed_s = elapsed_ns * 1e-9;
  s.windows_planned = planner_.clock().items.get();
  s.samples_planned = planner_.n_planned();
  s.samples_planned_bad = planner_.n_planned_bad();
  s.plan_busy_s = seconds(planner_.clock().busy_ns);
  s.plan_wait_measure_s = seconds(planner_.clock().wait_in_ns);
  s.plan_wait_queue_s = seconds(planner_.clock().wait_out_ns);
  s.admit_busy_s = seconds(preparer_.admit_clock().busy_ns);
  s.admit_wait_memory_s = seconds(preparer_.admit_clock().wait_out_ns);
  s.admit_wait_gate_s = seconds(gate_clock_.wait_out_ns);
  s.packs_admitted = preparer_.admit_clock().items.get();
  s.packs_finished = finished_.get();
  s.worker_busy_s = seconds(workers_.clock().busy_ns);
  s.worker_idle_s = seconds(workers_.clock().wait_in_ns);
  s.worker_tasks = workers_.clock().items.get();
  s.n_workers = workers_.n_threads();
  s.decoded_megapixels = static_cast<double>(preparer_.decoded_pixels()) * 1e-6;
  s.image_notes = preparer_.image_notes();
  s.changed_media = preparer_.n_changed();
  s.header_probes = measurer_.n_probes();
  s.header_bytes = measurer_.n_probe_bytes();
  s.samples_recalled = measurer_.n_recalled();
  s.samples_truncated = measurer_.n_truncated();
  s.content_control_literals = measurer_.n_control_literals();
  if (template_stage_) {
    s.template_busy_s = seconds(template_stage_->busy_ns);
    s.template_wait_s = seconds(template_stage_->wait_in_ns);
    s.templates_rendered = template_stage_->items.get();
  }
  s.fetch = fetcher_->stats();
  s.mean_planned_packs = static_cast<double>(planned_.occupancy_integral()) / elapsed_ns;
  s.mean_ready_packs = static_cast<double>(ready_occupancy_.integral()) / elapsed_ns;
  s.mean_worker_tasks = static_cast<double>(workers_.occupancy_integral()) / elapsed_ns;
  const MemoryBudget& encoded = preparer_.encoded();
  s.memory_limit_bytes = budget_->limit_bytes() + encoded.limit_bytes();
  s.memory_in_use_bytes = budget_->in_use_bytes() + encoded.in_use_bytes();
  s.memory_peak_bytes = budget_->peak_bytes() + encoded.peak_bytes();
  s.encoded_limit_bytes = encoded.limit_bytes();
  s.encoded_in_use_bytes = encoded.in_use_bytes();
  s.encoded_peak_bytes = encoded.peak_bytes();
  s.blocks_mapped = blocks_->n_mapped();
  return s;
}

}  // namespace stoker

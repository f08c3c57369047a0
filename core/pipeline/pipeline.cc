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
      budget_(std::make_shared<MemoryBudget>(MemoryShares::of(settings.speed.memory_limit_bytes,
                                                              MemoryShares::held_by_trainer(settings),
                                                              largest_block(settings.output.pack, model->config()))
                                                 .blocks)),
      blocks_(std::make_shared<BlockPool>(budget_,
                                          settings.peers.count > 1 ? BlockSharing::kShared : BlockSharing::kPrivate)),
      fetcher_(std::move(fetcher)),
      workers_(settings.speed.cpu_threads, "stoker-cpu", clock),
      plan_(settings, dataset, model, known, *fetcher_, workers_, std::move(fingerprint), start,
            {.ranks = RankSpan::only(settings.dp_rank),
             .max_whole_bytes = settings.speed.memory_limit_bytes / kWholeShare,
             .headers_refused = headers_refused(settings),
             .max_queued = static_cast<std::size_t>(std::max(1, MemoryShares::held_by_trainer(settings)))},
            clock),
      preparer_(settings, dataset, model, known, blocks_, *fetcher_, workers_, MemoryShares::held_by_trainer(settings),
                clock) {
  plan_.begin([this](PlanEnd end) { plan_ended(std::move(end)); });
  admission_thread_ = std::jthread([this] { run_admission(stop_.get_token()); });
}

void Pipeline::plan_ended(PlanEnd end) {
  MutexLock lock(mu_);
  plan_end_ = std::move(end);
  changed_.notify_all();
}

void Pipeline::run_admission(std::stop_token stop) {
  become_background_thread("stoker-admit");
  for (;;) {
    auto task = plan_.pop(stop);
    if (!task) return;
    {
      const Timed waiting(gate_clock_.wait_out_ns, clock_);
      if (!plan_.pass_gate(task->counts.step, stop)) return;
    }
    Status status = preparer_.admit(
        std::move(*task), [this](ReadyPack pack) { pack_done(std::move(pack)); },
        [this](Status failed) { end_with(std::move(failed)); }, stop);
    if (!status.ok()) return end_with(std::move(status));
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
    return ready_.contains(next_sequence_) || !ended_.ok() || (plan_end_ && plan_end_->n_packs == next_sequence_);
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
  if (plan_end_ && plan_end_->n_packs == next_sequence_) {
    if (!plan_end_->status.ok()) return plan_end_->status;
    is_at_end_ = true;
    return std::optional<ReadyPack>();
  }
  if (!ended_.ok()) return ended_;
  return std::optional<ReadyPack>();
}

std::vector<LedgerEntry> Pipeline::take_left_over() {
  MutexLock lock(mu_);
  if (!plan_end_ || plan_end_->n_packs != next_sequence_) return {};
  return std::exchange(plan_end_->left_over, {});
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
  plan_.stop();
  if (admission_thread_.joinable()) admission_thread_.join();
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
  const std::int64_t until = stopped_ns_ != 0 ? stopped_ns_.load() : clock_.now().count();
  s.elapsed_s = to_seconds(Nanos(std::max<std::int64_t>(until - began_.count(), 1)));
  plan_.tell(s);
  tell(workers_, *fetcher_, template_stage_.get(), s);
  preparer_.tell(*budget_, s);
  s.admit_wait_gate_s = to_seconds(Nanos(gate_clock_.wait_out_ns.get()));
  s.packs_finished = finished_.get();
  s.mean_ready_packs = to_seconds(Nanos(ready_occupancy_.integral())) / s.elapsed_s;
  return s;
}

}  // namespace stoker

#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "exec/worker_pool.h"
#include "mem/block.h"
#include "pipeline/known_lengths.h"
#include "pipeline/plan_stage.h"
#include "pipeline/preparer.h"
#include "pipeline/settings.h"
#include "pipeline/snapshot.h"

namespace stoker {

/// The running engine of one rank: plan -> admit -> fetch -> prepare -> ready, each on threads of its own, joined by
/// bounded queues. Made for one start; a resume makes another. Nothing of it outlives stop(), except blocks that the
/// trainer holds.
class Pipeline {
 public:
  /// @param known        What earlier runs learned; outlives the pipeline; may be null.
  /// @param fingerprint  Of the run: what ranks that share with each other have in common.
  Pipeline(const LoaderSettings& settings, const Dataset& dataset, std::shared_ptr<const qwen_vl::QwenVl> model,
           KnownLengths* known, std::unique_ptr<Fetcher> fetcher, std::string fingerprint, PlanState start,
           const Clock& clock);
  ~Pipeline() { stop(); }
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  /// The trainer wants this step: work may run up to it, and ahead of it as far as prefetch goes.
  void want_step(std::int64_t step) { plan_.want_step(step); }
  /// Takes the next pack in plan order.
  /// @return A pack; nothing if none came within `timeout`, or at the end of a finite order (`is_at_end`); what ended
  /// the run. What ends planning comes after all packs planned before, so that all ranks meet it at the same step.
  Result<std::optional<ReadyPack>> take_within(std::chrono::milliseconds timeout);
  /// Bad samples that no pack carries; not empty only after the end, once.
  std::vector<LedgerEntry> take_left_over() STOKER_EXCLUDES(mu_);
  /// True once take_within() has given everything of a finite order.
  bool is_at_end() const { return is_at_end_; }
  /// What the next pack waits for, for people: a stage, and of fetching the reference. Threads: any.
  std::string waits_for() const;
  /// Nothing moves until memory comes back, and all of it is in packs that were taken.
  bool waits_for_held_memory() const;
  BlockPool& blocks() { return *blocks_; }
  std::size_t memory_in_use_bytes() const { return budget_->in_use_bytes(); }
  /// Ends every thread, within a second whatever the stores do. Repeatable. Threads: any.
  void stop();

  PipelineSnapshot snapshot() const;

 private:
  void run_admission(std::stop_token stop);
  void pack_done(ReadyPack pack) STOKER_EXCLUDES(mu_);
  void plan_ended(PlanEnd end) STOKER_EXCLUDES(mu_);
  void end_with(Status status) STOKER_EXCLUDES(mu_);

  const Clock& clock_;
  const std::shared_ptr<const StageClock> template_stage_;
  const Nanos began_;
  std::atomic<std::int64_t> stopped_ns_{0};  // when; 0: running. Written by stop()
  std::stop_source stop_;
  std::shared_ptr<MemoryBudget> budget_;
  std::shared_ptr<BlockPool> blocks_;
  std::unique_ptr<Fetcher> fetcher_;
  WorkerPool workers_;
  PlanStage plan_;
  Preparer preparer_;
  StageClock gate_clock_;
  Counter finished_;

  std::uint64_t next_sequence_ = 0;  // the trainer thread's own
  bool is_at_end_ = false;

  Mutex mu_;
  std::condition_variable_any changed_;
  Occupancy ready_occupancy_;
  std::map<std::uint64_t, ReadyPack> ready_
      STOKER_GUARDED_BY(mu_);  // bounded by the gate: packs of prefetch_steps + 1 steps
  Status ended_ STOKER_GUARDED_BY(mu_);
  std::optional<PlanEnd> plan_end_ STOKER_GUARDED_BY(mu_);

  Mutex stop_mu_;
  std::jthread admission_thread_;
};

}  // namespace stoker

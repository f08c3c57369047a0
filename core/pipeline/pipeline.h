#pragma once

#include <array>
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
#include "exec/bounded_queue.h"
#include "exec/worker_pool.h"
#include "mem/block.h"
#include "pipeline/known_lengths.h"
#include "pipeline/measurer.h"
#include "pipeline/planner.h"
#include "pipeline/preparer.h"
#include "pipeline/run_exchange.h"
#include "pipeline/settings.h"
#include "pipeline/step_gate.h"

namespace stoker {

/// What every stage and queue has counted so far; plain numbers, times in seconds.
struct PipelineSnapshot {
  double elapsed_s = 0;
  std::int64_t windows_planned = 0, samples_planned = 0, samples_planned_bad = 0;
  double plan_busy_s = 0, plan_wait_measure_s = 0, plan_wait_queue_s = 0;
  double admit_busy_s = 0, admit_wait_memory_s = 0, admit_wait_gate_s = 0;
  std::int64_t packs_admitted = 0, packs_finished = 0;
  double worker_busy_s = 0, worker_idle_s = 0;
  std::int64_t worker_tasks = 0;
  int n_workers = 0;
  double decoded_megapixels = 0;
  std::array<std::int64_t, kImageNoteCount> image_notes{};  ///< pictures used although odd, by ImageNote
  std::int64_t header_probes = 0, header_bytes = 0;
  std::int64_t samples_recalled = 0;                ///< planned from the index, without reading their rows
  std::int64_t changed_media = 0;                   ///< pictures whose object changed after its header was read
  std::int64_t samples_truncated = 0;               ///< that lost turns from their end
  std::int64_t content_control_literals = 0;        ///< control tokens in content that stayed text
  double template_busy_s = 0, template_wait_s = 0;  ///< rendering outside of the engine; waiting for the interpreter
  std::int64_t templates_rendered = 0;
  FetchStats fetch;
  double mean_planned_packs = 0;  ///< in the queue between plan and admission
  double mean_ready_packs = 0;    ///< finished, not yet taken
  double mean_worker_tasks = 0;   ///< waiting for a worker
  std::size_t memory_limit_bytes = 0, memory_in_use_bytes = 0, memory_peak_bytes = 0;
  std::size_t encoded_limit_bytes = 0, encoded_in_use_bytes = 0, encoded_peak_bytes = 0;  ///< of these, encoded objects
  std::int64_t blocks_mapped = 0;
};

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
  void want_step(std::int64_t step) { gate_.want(step); }
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
  void run_planner(std::stop_token stop);
  void run_admission(std::stop_token stop);
  void pack_done(ReadyPack pack) STOKER_EXCLUDES(mu_);
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
  StepGate gate_;
  Measurer measurer_;
  RunExchange exchange_;
  Planner planner_;
  Preparer preparer_;
  BoundedQueue<PackTask> planned_;
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
  std::optional<std::uint64_t> n_packs_ STOKER_GUARDED_BY(mu_);  // planned in all, once planning has ended
  Status planning_ended_ STOKER_GUARDED_BY(mu_);
  std::vector<LedgerEntry> left_over_ STOKER_GUARDED_BY(mu_);

  Mutex stop_mu_;
  std::jthread planner_thread_;
  std::jthread admission_thread_;
};

}  // namespace stoker

#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "exec/bounded_queue.h"
#include "exec/worker_pool.h"
#include "pipeline/known_lengths.h"
#include "pipeline/measurer.h"
#include "pipeline/planner.h"
#include "pipeline/run_exchange.h"
#include "pipeline/settings.h"
#include "pipeline/snapshot.h"
#include "pipeline/step_gate.h"

namespace stoker {

/// How planning ended.
struct PlanEnd {
  Status status;                       ///< ok at the end of a finite order; what ended the run otherwise
  std::uint64_t n_packs = 0;           ///< handed on in all
  std::vector<LedgerEntry> left_over;  ///< bad samples that no pack carries
};

/// The planning half of an engine: on a thread of its own it measures, plans, and puts packs into a bounded queue.
class PlanStage {
 public:
  using Ended = std::function<void(PlanEnd)>;

  struct Options {
    RankSpan ranks = {};
    std::size_t max_whole_bytes = 0;   ///< MeasureOptions::max_whole_bytes
    std::string headers_refused = {};  ///< MeasureOptions::headers_refused
    bool keeps_text = true;            ///< MeasureOptions::keeps_text
    std::size_t max_queued = 1;        ///< packs
  };

  /// Nothing runs before begin(). Everything borrowed outlives this.
  /// @param known        What earlier runs learned; may be null.
  /// @param fingerprint  Of the run: what ranks that share with each other have in common.
  PlanStage(const LoaderSettings& settings, const Dataset& dataset, std::shared_ptr<const qwen_vl::QwenVl> model,
            KnownLengths* known, Fetcher& fetcher, WorkerPool& workers, std::string fingerprint, const PlanState& start,
            Options options, const Clock& clock);
  ~PlanStage() { stop(); }
  PlanStage(const PlanStage&) = delete;
  PlanStage& operator=(const PlanStage&) = delete;

  /// @param ended  Called once on the stage's thread, unless it is stopped before; the last packs may still be queued.
  void begin(Ended ended);
  /// The trainer wants this step: work may run up to it, and ahead of it as far as prefetch goes. Threads: any.
  void want_step(std::int64_t step) { gate_.want(step); }
  /// Whether a pack of this step may be worked on. @return false once `stop` is requested.
  bool pass_gate(std::int64_t step, std::stop_token stop) { return gate_.pass(step, std::move(stop)); }

  /// The next pack in plan order. @return nothing once `stop` is requested. Blocks.
  std::optional<PackTask> pop(std::stop_token stop) { return planned_.pop(std::move(stop)); }
  /// The next pack, if it may be worked on and one comes within `timeout`. Threads: one.
  std::optional<PackTask> pop_wanted_within(std::chrono::milliseconds timeout);

  /// Ends its threads, within a second whatever the stores do. Repeatable; one call at a time.
  void stop();
  /// Adds what planning has counted. `to.elapsed_s` is there already. Threads: any.
  void tell(PipelineSnapshot& to) const;

 private:
  void run(const Ended& ended, const std::stop_token& stop);

  StepGate gate_;
  Measurer measurer_;
  RunExchange exchange_;
  Planner planner_;
  BoundedQueue<PackTask> planned_;
  std::optional<PackTask> held_;  // popped before it was wanted; the popping thread's own
  std::jthread thread_;
};

}  // namespace stoker

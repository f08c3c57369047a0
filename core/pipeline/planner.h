#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <stop_token>
#include <utility>
#include <vector>

#include "base/result.h"
#include "exec/bounded_queue.h"
#include "metric/metric.h"
#include "pipeline/measurer.h"
#include "pipeline/pack_task.h"
#include "pipeline/run_exchange.h"
#include "pipeline/settings.h"
#include "pipeline/step_gate.h"
#include "plan/step.h"

namespace stoker {

/// What planning needs of measured samples.
std::vector<PlanSample> plan_samples(const MeasuredWindow& window, const CostModel& cost);

/// Ranks of a run, half-open.
struct RankSpan {
  std::int32_t begin = 0, end = 1;

  static RankSpan only(std::int32_t rank) { return {rank, rank + 1}; }
  bool has(std::int32_t rank) const { return rank >= begin && rank < end; }
};

/// Walks the order window by window: measures, plans, cuts steps, and hands on the packs of some ranks, step by step
/// and in a step by (micro-batch, rank). Runs on one thread of the pipeline; the plan itself is pure.
class Planner {
 public:
  using Hand = std::function<bool(PackTask)>;  ///< false: stop

  /// @param ranks  Whose packs, and lines of the ledger, are handed on; in [0, settings.dp_size).
  Planner(const LoaderSettings& settings, const CostModel& cost, const Dataset& dataset, Measurer& measurer,
          RunExchange& exchange, StepGate& gate, PlanState start, RankSpan ranks, const Clock& clock);

  /// Plans until the order ends or `stop` is requested. @return ok at the end of a finite order; what ended the run
  /// otherwise: the packs handed on before come first, on every rank the same.
  Status run(const Hand& hand, std::stop_token stop);
  /// After run(): bad samples that no pack was left to carry to the ledger.
  std::vector<LedgerEntry> take_planned_around() { return std::exchange(planned_around_, {}); }

  const StageClock& clock() const { return stage_; }
  std::int64_t n_planned() const { return n_planned_.get(); }
  std::int64_t n_planned_bad() const { return n_bad_.get(); }

 private:
  Status add_window(std::uint64_t window, std::stop_token stop);
  Status check_bad(const MeasuredWindow& window, std::uint64_t n_until_end);
  PackTask task_for(const StepPlan& step, std::size_t pack, PackPlace place);

  const LoaderSettings& settings_;
  const CostModel cost_;
  const RankSpan ranks_;
  const Dataset& dataset_;
  Measurer& measurer_;
  RunExchange& exchange_;
  StepGate& gate_;
  const Clock& clock_time_;
  StageClock stage_;
  Counter n_planned_;
  Counter n_bad_;

  StepPlanner steps_;  // from here on: the planner thread's own
  const PlanState start_;
  std::map<std::uint64_t, std::shared_ptr<const MeasuredWindow>>
      measured_;  // windows whose packs are not all handed on
  std::vector<LedgerEntry> planned_around_;
  std::uint64_t next_sequence_ = 0;
  std::int64_t steps_in_last_window_ = 1;
};

}  // namespace stoker

#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "plan/assign.h"
#include "plan/plan.h"

namespace stoker {

/// @return kSettings unless dp_size is positive and divides packs_per_step.
Status check_dp_size(std::int32_t packs_per_step, std::int32_t dp_size);

/// @return kDataTooSmall if an endless order has fewer rows than a step has packs (a step would hold a row twice).
Status check_data_size(std::uint64_t rows_per_pass, std::int32_t packs_per_step, bool is_finite);

/// Where delivery stands: a cursor into the plan, the same for every rank and every dp_size. All zero at the start.
struct PlanState {
  std::uint64_t step = 0;             ///< steps delivered
  std::uint64_t window = 0;           ///< the window that the last delivered pack came from
  std::uint64_t packs_delivered = 0;  ///< of that window; may be all of them
  std::string window_digest;          ///< of that window's plan; empty while nothing of it was delivered

  bool operator==(const PlanState&) const = default;
};

/// One pack of a step.
struct StepPack {
  std::shared_ptr<const WindowPlan> window;  ///< null for a dummy, which completes the last step of a finite run
  std::uint32_t pack = 0;                    ///< index into window->packs

  bool is_dummy() const { return window == nullptr; }
  const PackPlan& plan() const { return window->packs[pack]; }  ///< not for a dummy
};

/// One optimizer step's packs over all ranks.
struct StepPlan {
  std::vector<StepPack> packs;     ///< (packs_per_step) in plan order
  PlanState before;                ///< resuming from it gives this step again
  PlanState after;                 ///< resuming from it gives the next step
  std::int64_t target_tokens = 0;  ///< sum over all packs

  std::uint64_t step() const { return before.step; }
  /// Where each pack goes, see assign_step. dp_size must divide packs_per_step.
  std::vector<PackPlace> places(std::int32_t dp_size) const;
  /// Indices into `packs` of one rank's micro-batches, in order; size packs_per_step / dp_size. dp_size must divide
  /// packs_per_step.
  std::vector<std::uint32_t> micro_batches_of(std::int32_t rank, std::int32_t dp_size) const;
};

/// Cuts the sequence of packs into steps that run on across windows: windows go in, in order, and steps come out.
/// Resume is a seek: construct with the state, then feed from state.window on.
/// Threads: one.
class StepPlanner {
 public:
  /// @param rows_per_pass  Of the order; a run of that many unusable positions is a pass without a usable sample.
  /// @param windows_per_pass  Where nobody knows the rows: so many windows without a usable sample are one, too.
  StepPlanner(std::int32_t packs_per_step, std::uint64_t rows_per_pass, PlanState start = {},
              std::uint64_t windows_per_pass = UINT64_MAX);

  /// The window that add() wants next.
  std::uint64_t next_window() const { return next_window_; }

  /// @return kState if this is the start's window and its digest or number of packs does not fit the state;
  ///         kNoData once a whole pass gave no usable sample; kInternal for a window out of turn or after finish().
  Status add(std::shared_ptr<const WindowPlan> window);

  /// No window follows (finite orders): what is left becomes a last step, completed by dummies.
  void finish() { is_finished_ = true; }

  /// The next step, or nullopt: feed a window, or, after finish(), the end.
  std::optional<StepPlan> next();

  /// True once next() has given all there is.
  bool is_at_end() const { return is_finished_ && ready_.empty(); }

 private:
  std::int32_t packs_per_step_;
  std::uint64_t rows_per_pass_;
  std::uint64_t windows_per_pass_;
  PlanState at_;
  std::uint64_t next_window_;
  std::uint64_t n_unusable_run_ = 0;      // positions since the last usable one
  std::uint64_t n_unusable_windows_ = 0;  // windows in a row without one
  bool is_finished_ = false;
  std::deque<StepPack> ready_;
  std::shared_ptr<const WindowPlan> digested_;  // the window that at_.window_digest belongs to
};

}  // namespace stoker

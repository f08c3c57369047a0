#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "data/pack.h"
#include "pipeline/ledger.h"
#include "pipeline/measured.h"
#include "plan/step.h"

namespace stoker {

/// One pack of this rank, planned: what is to be fetched and prepared, and where it stands.
struct PackTask {
  std::uint64_t sequence = 0;                    ///< running number on this rank since the start
  std::shared_ptr<const MeasuredWindow> window;  ///< null for a dummy pack
  std::vector<std::uint32_t> members;            ///< into window->samples
  BatchCounts counts;                            ///< as planned; target_tokens becomes exact later
  bool is_last_of_step = false;
  PlanState state_before;  ///< of the whole step
  PlanState state_after;
  /// (members) Those that had no text, with it; null: as in the window. Empty before admission.
  std::vector<std::shared_ptr<const MeasuredSample>> completed;
  std::vector<LedgerEntry> planned_around;  ///< bad samples that measuring found since the last pack, for the ledger
  std::uint64_t priority = 0;

  const MeasuredSample& sample(std::size_t i) const {
    return !completed.empty() && completed[i] ? *completed[i] : window->samples[members[i]];
  }
};

/// A finished pack with what delivery needs to know.
struct ReadyPack {
  Batch batch;
  PackTask task;
  std::vector<LedgerEntry> found_late;  ///< samples that turned out bad after planning
  std::int64_t n_samples_planned = 0;
};

}  // namespace stoker

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/hash.h"
#include "data/pack.h"
#include "pipeline/ledger.h"
#include "pipeline/measured.h"
#include "plan/step.h"

namespace stoker {

/// One pack, planned: what is to be fetched and prepared, and where it stands.
struct PackTask {
  std::uint64_t sequence = 0;  ///< running number since the start, over all ranks that are planned for
  std::int32_t rank = 0;       ///< whose pack it is
  std::shared_ptr<const MeasuredWindow> window;  ///< null for a dummy pack
  std::vector<std::uint32_t> members;            ///< into window->samples
  BatchCounts counts;                            ///< as planned; target_tokens becomes exact later
  bool is_last_of_step = false;
  PlanState state_before;  ///< of the whole step
  PlanState state_after;
  /// (members) Those that had no text, with it; null: as in the window. Empty before admission.
  std::vector<std::shared_ptr<const MeasuredSample>> completed;
  std::vector<LedgerEntry> planned_around;  ///< bad samples that measuring found since the last pack, for the ledger
  std::vector<std::uint32_t> rejected;      ///< into members: given up, WORKER_KILLED; nothing of them is read
  std::string why_rejected;                 ///< what their processes died of, for people; may be empty
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
  std::vector<Hash128> stale;           ///< media_key, as planned with, of media that are to be measured anew
  std::int64_t n_samples_planned = 0;
};

}  // namespace stoker

#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "pipeline/fingerprints.h"
#include "plan/step.h"

namespace stoker {

/// A checkpoint's share of the data: a cursor into the plan, never the contents of queues. The same on every rank; any
/// dp_size that divides packs_per_step resumes from it.
struct LoaderState {
  static constexpr std::int64_t kVersion = 1;

  std::int64_t version = kVersion;
  std::string fingerprint;  ///< "name=hash ..." for every setting that decides what comes out
  PlanState cursor;
  std::int64_t dp_size = 0;  ///< for the reader only
};

/// Where a run goes on from a state.
struct ResumePoint {
  PlanState cursor;
  std::string warning;  ///< what accepting changed settings means here; empty if none had changed
};

/// @param fingerprint  Of the run that is to go on.
/// @param accepted     Settings whose change is accepted. The run then goes on at the beginning of the window that the
///                     state stands in, since its packs are others now.
/// @return STATE for another version, or naming the settings that differ and are not accepted.
Result<ResumePoint> resume_point(const LoaderState& state, const std::string& fingerprint,
                                 std::span<const std::string> accepted);

}  // namespace stoker

#pragma once

#include <cstdint>
#include <span>

#include "base/result.h"
#include "plan/plan.h"

namespace stoker {

/// How samples are packed elsewhere: what plan_window is compared with, never what a run does. Packs stand in the order
/// in which they were opened.
enum class Baseline : std::uint8_t {
  kConcatenate,   ///< each sample into the last pack; one that does not fit opens the next
  kFirstFit,      ///< each sample, as it comes, into the first pack with room
  kLargestFirst,  ///< longest first, each into the fullest pack with room (best-fit decreasing, on tokens)
  kEqualCounts,   ///< so many samples to each pack as a mean pack has, however long: what a batch size does
};

/// Packs the usable samples of a window by one of them, at most `tokens_per_pack` to a pack except with kEqualCounts.
/// @param settings  Of form kPacked; limits of images and patches are not kept. Valid, see check_pack_settings.
/// Pure. @return kInternal for a usable sample longer than a pack.
Result<WindowPlan> plan_baseline(Baseline baseline, std::uint64_t window, std::span<const PlanSample> samples,
                                 const PackSettings& settings);

}  // namespace stoker

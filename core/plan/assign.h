#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace stoker {

/// Where a pack of a step goes.
struct PackPlace {
  std::int32_t rank = 0;
  std::int32_t micro_batch = 0;

  bool operator==(const PackPlace&) const = default;
};

/// What a pack costs in each phase; see plan/cost.h.
struct PhaseCosts {
  std::int64_t language = 0;
  std::int64_t vision = 0;
};

/// Places the packs of one step on (rank, micro-batch). Ranks meet in every micro-batch, and sharded ones in each phase
/// of it, so that the packs of a micro-batch are alike in language cost, vision cost and their sum; and the ranks' sums
/// over the step are even in all three. Pure, in integers; does not depend on who asks.
/// @param costs  (packs_per_step), none negative, their sums below 2^63; packs_per_step is a multiple of dp_size.
/// @return (packs_per_step) one place per pack; every (rank, micro-batch) exactly once.
std::vector<PackPlace> assign_step(std::span<const PhaseCosts> costs, std::int32_t dp_size);

}  // namespace stoker

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace stoker {

/// What planning needs to know of one position of the order; no pixels.
struct PlanSample {
  std::uint64_t order_index = 0;   ///< position in the order
  std::int64_t tokens = 0;         ///< visual tokens included
  std::int64_t target_tokens = 0;  ///< tokens with a label
  std::int64_t patches = 0;
  std::int32_t images = 0;
  std::int64_t cost_language = 0;  ///< see plan/cost.h
  std::int64_t cost_vision = 0;
  bool usable = true;  ///< false: known to be bad, takes no place in a pack
};

/// Part of the fingerprint: these decide what comes out.
struct PackSettings {
  std::int64_t tokens_per_pack = 16384;
  std::int32_t packs_per_step = 64;  ///< over all ranks and micro-batches
};

/// One pack: members and their sums.
struct PackPlan {
  std::vector<std::uint32_t> members;  ///< indices into the window's samples, ascending
  std::int64_t tokens = 0;
  std::int64_t target_tokens = 0;
  std::int64_t patches = 0;
  std::int32_t images = 0;
  std::int64_t cost_language = 0;
  std::int64_t cost_vision = 0;

  std::int64_t cost() const { return cost_language + cost_vision; }
};

/// The packs of one window, in the one sequence in which they are delivered; neighbours are alike in cost.
struct WindowPlan {
  std::uint64_t window = 0;
  std::vector<PackPlan> packs;
  std::uint64_t n_samples = 0;            ///< positions of the window
  std::uint64_t n_usable = 0;             ///< of which in a pack
  std::uint64_t n_trailing_unusable = 0;  ///< positions after the last usable one

  /// 32 hexadecimal digits over window, members and sums: what ranks compare.
  std::string digest() const;
};

/// Packs the usable samples of a window: each exactly once, none split, at most `tokens_per_pack` per pack, near-full,
/// and even in tokens, language cost and vision cost at once. Pure and in integers: every rank computes the same.
/// @return kSettings for settings out of range; kInternal if a usable sample has no token, more than `tokens_per_pack`,
/// or a negative
///         cost (the caller refuses such rows as bad samples first).
/// Threads: any. Under 1 us per sample.
Result<WindowPlan> plan_window(std::uint64_t window, std::span<const PlanSample> samples, const PackSettings& settings);

}  // namespace stoker

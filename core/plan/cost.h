#pragma once

#include <cstdint>

namespace stoker {

/// What a sample costs the trainer, forward and backward, in thousands of FLOPs (integers: a plan is the same on every
/// node). language = per_token * tokens + per_token_pair * tokens^2          causal attention inside the sample vision
/// = sum over images of per_patch * n + per_patch_pair * n^2  attention inside one image or frame group of n patches
/// The defaults are those of Qwen3-VL-8B. Values stay below 2^63 for samples of up to 10 million tokens or patches.
struct CostModel {
  std::int64_t language_per_token = 45'400'000;
  std::int64_t language_per_token_pair = 885;
  std::int64_t vision_per_patch = 2'720'000;
  std::int64_t vision_per_patch_pair = 373;

  constexpr std::int64_t language(std::int64_t tokens) const {
    return language_per_token * tokens + language_per_token_pair * tokens * tokens;
  }
  /// One image or one frame group; the caller sums over a sample.
  constexpr std::int64_t vision(std::int64_t patches) const {
    return vision_per_patch * patches + vision_per_patch_pair * patches * patches;
  }
};

inline constexpr double kFlopsPerCost = 1e3;  ///< FLOPs in one unit of cost

}  // namespace stoker

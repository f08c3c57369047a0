#pragma once

#include <cstdint>

#include "base/result.h"

namespace stoker {

/// What a sample costs the trainer, forward and backward, in thousands of FLOPs, or in picoseconds where it was fitted
/// from measured times (integers: a plan is the same on every node).
///   language = per_token * tokens + per_token_pair * tokens^2          causal attention inside the sample
///   vision   = sum over images of per_patch * n + per_patch_pair * n^2  attention inside one image or frame group of n
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
  bool operator==(const CostModel&) const = default;
};

inline constexpr double kFlopsPerCost = 1e3;  ///< FLOPs in one unit of cost
/// Coefficients must be below this, so that costs stay below 2^63.
inline constexpr std::int64_t kMostPerUnit = std::int64_t{1} << 39;
inline constexpr std::int64_t kMostPerPair = std::int64_t{1} << 15;

/// @return kSettings unless all coefficients are from 0 to their limits, and a token and a patch cost something.
Status check_cost(const CostModel& cost);

/// How large a model is, as far as FLOPs depend on it. Of a mixture of experts the active ones.
struct ModelShape {
  std::int64_t layers = 0, hidden = 0;
  std::int64_t query_width = 0, key_width = 0;  ///< heads * head size; of the keys' and values' heads
  std::int64_t mlp = 0;  ///< summed over all layers: rows of the up projection that a token meets
  std::int64_t vocabulary = 0;

  std::int64_t depth = 0, width = 0;  ///< of the vision tower
  std::int64_t vision_mlp = 0;
  std::int64_t vision_mlp_matrices = 2;  ///< 3 with a gate
  std::int64_t patch_values = 0;         ///< numbers in a patch: channels * t * p * p
  std::int64_t merge = 2;
  std::int64_t mergers = 1;         ///< DeepStack's included
  std::int64_t global_layers = 0;   ///< whose attention spans the image; of the others,
  std::int64_t window_patches = 0;  ///< a window of so many

  bool operator==(const ModelShape&) const = default;
};

/// 6 FLOPs per parameter that a token or a patch meets; attention 6 * n^2 * width per causal layer (language), 12 * n^2
/// * width per vision layer. To three digits, and at least one unit. Pure.
CostModel cost_of(const ModelShape& shape);

}  // namespace stoker

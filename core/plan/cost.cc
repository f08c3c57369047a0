#include "plan/cost.h"

#include <fmt/format.h>

#include <algorithm>

namespace stoker {
namespace {

// A plan must not hang on the last digits of an estimate.
std::int64_t three_digits(std::int64_t flops) {
  std::int64_t unit = 1;
  while (flops / unit >= 1000) unit *= 10;
  return (flops + unit / 2) / unit * unit;
}

std::int64_t in_units(std::int64_t flops, std::int64_t most) {
  if (flops <= 0) return 0;
  return std::clamp<std::int64_t>((three_digits(flops) + 500) / 1000, 1, most - 1);
}

}  // namespace

Status check_cost(const CostModel& cost) {
  const auto is_in = [](std::int64_t value, std::int64_t least, std::int64_t end) {
    return value >= least && value < end;
  };
  if (is_in(cost.language_per_token, 1, kMostPerUnit) && is_in(cost.language_per_token_pair, 0, kMostPerPair) &&
      is_in(cost.vision_per_patch, 1, kMostPerUnit) && is_in(cost.vision_per_patch_pair, 0, kMostPerPair)) {
    return {};
  }
  return {
      Reason::kSettings,
      fmt::format("pack.cost_file: a token and a patch must cost from 1 to 2^39 - 1, a pair of them from 0 to 2^15 - "
                  "1; they are {}, {}, {}, {}",
                  cost.language_per_token, cost.vision_per_patch, cost.language_per_token_pair,
                  cost.vision_per_patch_pair)};
}

CostModel cost_of(const ModelShape& s) {
  const std::int64_t attention = s.layers * s.hidden * 2 * (s.query_width + s.key_width);
  const std::int64_t per_token = attention + 3 * s.mlp * s.hidden + s.vocabulary * s.hidden;

  const std::int64_t layer = 4 * s.width * s.width + s.vision_mlp_matrices * s.width * s.vision_mlp;
  const std::int64_t merged = s.width * s.merge * s.merge;
  const std::int64_t merger = (merged * merged + merged * s.hidden) / (s.merge * s.merge);
  const std::int64_t per_patch = s.depth * layer + s.patch_values * s.width + s.mergers * merger;
  const std::int64_t in_windows = 12 * s.width * s.window_patches * (s.depth - s.global_layers);
  return {.language_per_token = in_units(6 * per_token, kMostPerUnit),
          .language_per_token_pair = in_units(6 * s.query_width * s.layers, kMostPerPair),
          .vision_per_patch = in_units(6 * per_patch + in_windows, kMostPerUnit),
          .vision_per_patch_pair = in_units(12 * s.width * s.global_layers, kMostPerPair)};
}

}  // namespace stoker

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <vector>

#include "base/rng.h"
#include "plan/cost.h"
#include "plan/plan.h"

namespace stoker {

/// A synthetic mixture of samples, as a Qwen3-VL-8B trainer meets it: 33 % text only (tokens lognormal, median 500,
/// sigma 0.8), 60 % images (area lognormal, median 0.55 MP, sigma 0.8, at most 4 MP; 20 % with 2 to 4 images; text
/// median 250), 7 % video (16 to 128 frames of 448 x 256).
class Mixture {
 public:
  explicit Mixture(std::uint64_t seed) : rng_(seed) {}

  std::vector<PlanSample> window(std::size_t n, std::uint64_t first_index = 0) {
    std::vector<PlanSample> samples;
    samples.reserve(n);
    for (std::size_t i = 0; i < n; ++i) samples.push_back(sample(first_index + i));
    return samples;
  }

 private:
  PlanSample sample(std::uint64_t index) {
    PlanSample s;
    s.order_index = index;
    const double kind = rng_.uniform();
    if (kind < 0.33) {
      s.tokens = text(500);
    } else if (kind < 0.93) {
      s.tokens = text(250);
      s.images = rng_.uniform() < 0.2 ? 2 + static_cast<int>(rng_.uniform() * 3) : 1;
      for (int i = 0; i < s.images; ++i) {
        const double area_px = std::min(4e6, 0.55e6 * std::exp(0.8 * normal()));
        add_vision(s, 4 * std::max<std::int64_t>(4, std::llround(area_px / 1024)));
      }
    } else {
      s.tokens = text(250);
      s.videos = 1;
      const auto n_groups = static_cast<std::int64_t>(16 + rng_.uniform() * 113) / 2;
      for (std::int64_t g = 0; g < n_groups; ++g) add_vision(s, 28 * 16);
    }
    s.target_tokens = s.tokens / 8 + 1;
    s.cost_language = CostModel{}.language(s.tokens);
    s.usable = s.tokens <= 16384;
    return s;
  }

  static void add_vision(PlanSample& s, std::int64_t patches) {
    s.patches += patches;
    s.tokens += patches / 4;
    s.cost_vision += CostModel{}.vision(patches);
  }

  std::int64_t text(double median) {
    return std::max<std::int64_t>(8, std::llround(median * std::exp(0.8 * normal())));
  }

  double normal() {  // Box and Muller
    const double u = 1.0 - rng_.uniform();
    return std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * rng_.uniform());
  }

  Rng rng_;
};

}  // namespace stoker

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/step.h"

namespace stoker {

/// Which rank gets which pack of a step.
enum class Placement : std::uint8_t {
  kBalanced,  ///< as a run places them: assign_step
  kInOrder,   ///< the first packs to the ranks in turn, then the next: what a sampler does that knows no costs
};

/// How uneven something is over the ranks: the most that a rank has / what a rank has in the mean.
struct Unevenness {
  double mean = 1;   ///< over the steps that have any of it
  double worst = 1;  ///< of a step
};

/// What a step costs the ranks, in units of cost (plan/cost.h).
struct StepCosts {
  double least = 0, mean = 0, most = 0;  ///< over ranks, of a rank's whole step
  double per_phase = 0;                  ///< see RankForecast
};

/// What planned steps would cost so many ranks. Costs are sums over the steps, in units of cost, so that a rank's speed
/// makes times of them.
struct RankForecast {
  std::int32_t dp_size = 1;
  std::int64_t n_steps = 0;
  Unevenness total, language, vision;
  double busy = 0;             ///< what a rank computes, in the mean: nobody can be faster
  double per_step = 0;         ///< if ranks meet at the end of a step (replicated weights, gradients added up)
  double per_micro_batch = 0;  ///< if they meet after each micro-batch
  /// If they meet in the vision tower and in the language model of each micro-batch, and so pay the most of each:
  /// sharded weights (FSDP, ZeRO-3).
  double per_phase = 0;
  std::vector<StepCosts> steps;  ///< of the first kMostSteps

  static constexpr std::size_t kMostSteps = 512;
};

/// Adds up steps for a number of ranks. Pure; memory does not depend on the number of steps. Threads: one.
class RankForecaster {
 public:
  /// `dp_size` must divide the steps' number of packs, see check_dp_size.
  RankForecaster(std::int32_t dp_size, Placement placement);

  void add(const StepPlan& step);
  RankForecast forecast() const;

 private:
  struct Ratio {
    double sum = 0, worst = 0;
    std::int64_t n = 0;
    void add(const std::vector<double>& of_ranks);
    Unevenness unevenness() const;
  };

  const Placement placement_;
  RankForecast sums_;
  Ratio total_, language_, vision_;
};

}  // namespace stoker

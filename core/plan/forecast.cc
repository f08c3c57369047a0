#include "plan/forecast.h"

#include <algorithm>
#include <numeric>
#include <span>

namespace stoker {
namespace {

double sum_of(std::span<const double> values) { return std::accumulate(values.begin(), values.end(), 0.0); }

double most_of(std::span<const double> values) { return *std::max_element(values.begin(), values.end()); }

std::vector<PackPlace> places_of(const StepPlan& step, std::int32_t dp_size, Placement placement) {
  if (placement == Placement::kInOrder) {
    std::vector<PackPlace> places;
    for (std::size_t i = 0; i < step.packs.size(); ++i) {
      const auto k = static_cast<std::int32_t>(i);
      places.push_back({.rank = k % dp_size, .micro_batch = k / dp_size});
    }
    return places;
  }
  return step.places(dp_size);
}

}  // namespace

void RankForecaster::Ratio::add(const std::vector<double>& of_ranks) {
  const double mean = sum_of(of_ranks) / static_cast<double>(of_ranks.size());
  if (mean <= 0) return;
  sum += most_of(of_ranks) / mean;
  worst = std::max(worst, most_of(of_ranks) / mean);
  ++n;
}

Unevenness RankForecaster::Ratio::unevenness() const {
  if (n == 0) return {};
  return {.mean = sum / static_cast<double>(n), .worst = worst};
}

RankForecaster::RankForecaster(std::int32_t dp_size, Placement placement) : placement_(placement) {
  sums_.dp_size = dp_size;
}

void RankForecaster::add(const StepPlan& step) {
  const auto n_ranks = static_cast<std::size_t>(sums_.dp_size);
  const std::size_t n_micro = step.packs.size() / n_ranks;
  const std::vector<PackPlace> places = places_of(step, sums_.dp_size, placement_);
  // (n_micro, n_ranks)
  std::vector<double> language(n_micro * n_ranks), vision(n_micro * n_ranks);
  for (std::size_t i = 0; i < step.packs.size(); ++i) {
    if (step.packs[i].is_dummy()) continue;
    const std::size_t at =
        static_cast<std::size_t>(places[i].micro_batch) * n_ranks + static_cast<std::size_t>(places[i].rank);
    language[at] += static_cast<double>(step.packs[i].plan().cost_language);
    vision[at] += static_cast<double>(step.packs[i].plan().cost_vision);
  }
  std::vector<double> rank_language(n_ranks), rank_vision(n_ranks), rank_total(n_ranks), micro(n_ranks);
  double per_micro_batch = 0;
  StepCosts costs;
  for (std::size_t m = 0; m < n_micro; ++m) {
    const auto of_micro = [&](const std::vector<double>& all) { return std::span(all).subspan(m * n_ranks, n_ranks); };
    costs.per_phase += most_of(of_micro(language)) + most_of(of_micro(vision));
    for (std::size_t r = 0; r < n_ranks; ++r) {
      rank_language[r] += of_micro(language)[r];
      rank_vision[r] += of_micro(vision)[r];
      micro[r] = of_micro(language)[r] + of_micro(vision)[r];
      rank_total[r] += micro[r];
    }
    per_micro_batch += most_of(micro);
  }
  total_.add(rank_total);
  language_.add(rank_language);
  vision_.add(rank_vision);
  costs.least = *std::min_element(rank_total.begin(), rank_total.end());
  costs.mean = sum_of(rank_total) / static_cast<double>(n_ranks);
  costs.most = most_of(rank_total);
  ++sums_.n_steps;
  sums_.busy += costs.mean;
  sums_.per_step += costs.most;
  sums_.per_micro_batch += per_micro_batch;
  sums_.per_phase += costs.per_phase;
  if (sums_.steps.size() < RankForecast::kMostSteps) sums_.steps.push_back(costs);
}

RankForecast RankForecaster::forecast() const {
  RankForecast out = sums_;
  out.total = total_.unevenness();
  out.language = language_.unevenness();
  out.vision = vision_.unevenness();
  return out;
}

}  // namespace stoker

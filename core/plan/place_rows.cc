#include <algorithm>
#include <utility>

#include "plan/filling.h"
#include "plan/placing.h"

namespace stoker {
namespace {

// Where limits close a pack early, so many stay open for samples that are to come.
constexpr std::size_t kMostOpen = 16;
// Among packs whose samples' lengths differ by less than this part, samples go wherever vision cost gets even: the
// padding that it makes is less than that.
constexpr std::int64_t kAlike = 16;
constexpr std::size_t kMostAlike = 64;  // packs

std::vector<std::uint32_t> longest_first(std::span<const PlanSample> samples, const PackSettings& settings) {
  std::vector<std::uint32_t> order;
  for (std::uint32_t i = 0; i < samples.size(); ++i) {
    if (samples[i].usable) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return row_tokens(settings, samples[a].tokens) > row_tokens(settings, samples[b].tokens);
  });
  return order;
}

Members cut(std::span<const PlanSample> samples, const PackSettings& settings, std::span<const std::uint32_t> order) {
  Members packs;
  std::vector<Filling> filling;
  std::vector<std::size_t> open;
  for (const std::uint32_t i : order) {
    const auto takes = [&](std::size_t pack) { return filling[pack].takes(settings, samples[i]); };
    auto at = std::find_if(open.begin(), open.end(), takes);
    if (at == open.end()) {
      if (open.size() == kMostOpen) open.erase(open.begin());
      open.push_back(packs.size());
      at = open.end() - 1;
      packs.emplace_back();
      filling.emplace_back();
    }
    const std::size_t pack = *at;
    packs[pack].push_back(i);
    filling[pack].add(settings, samples[i]);
    if (filling[pack].is_full(settings)) open.erase(at);
  }
  return packs;
}

// Deals the samples of packs with as many rows anew, dearest in vision first, each to the pack with the least.
void deal(std::span<const PlanSample> samples, const PackSettings& settings,
          std::span<std::vector<std::uint32_t>> packs) {
  const std::size_t n_rows = packs.front().size();
  std::vector<std::uint32_t> pool;
  for (const auto& members : packs) pool.insert(pool.end(), members.begin(), members.end());
  std::stable_sort(pool.begin(), pool.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return samples[a].cost_vision > samples[b].cost_vision; });
  Members dealt(packs.size());
  std::vector<Filling> filling(packs.size());
  std::vector<std::int64_t> vision(packs.size());
  for (const std::uint32_t i : pool) {
    std::size_t best = packs.size();
    for (std::size_t p = 0; p < packs.size(); ++p) {
      const bool is_less = best == packs.size() || vision[p] < vision[best];
      if (is_less && dealt[p].size() < n_rows && filling[p].takes(settings, samples[i])) best = p;
    }
    if (best == packs.size()) return;  // limits: they stay as they were
    dealt[best].push_back(i);
    filling[best].add(settings, samples[i]);
    vision[best] += samples[i].cost_vision;
  }
  std::move(dealt.begin(), dealt.end(), packs.begin());
}

void even_vision(std::span<const PlanSample> samples, const PackSettings& settings, Members& packs) {
  for (std::size_t first = 0; first < packs.size();) {
    const std::int64_t longest = samples[packs[first].front()].tokens;
    std::size_t last = first + 1;
    while (last < packs.size() && last - first < kMostAlike && packs[last].size() == packs[first].size() &&
           samples[packs[last].back()].tokens * kAlike > longest * (kAlike - 1)) {
      ++last;
    }
    if (last - first > 1) deal(samples, settings, std::span(packs).subspan(first, last - first));
    first = last;
  }
}

void sort_members(Members& packs) {
  for (auto& members : packs) std::sort(members.begin(), members.end());
}

}  // namespace

Members place_rows(std::span<const PlanSample> samples, const PackSettings& settings) {
  Members packs = cut(samples, settings, longest_first(samples, settings));
  if (settings.balance == PackBalance::kFlops) even_vision(samples, settings, packs);
  sort_members(packs);
  if (settings.vision_uniform != VisionUniform::kNone) spread_vision(samples, settings, packs);
  return packs;
}

Members place_in_order(std::span<const PlanSample> samples, const PackSettings& settings) {
  Members packs;
  Filling last;
  for (std::uint32_t i = 0; i < samples.size(); ++i) {
    if (!samples[i].usable) continue;
    if (packs.empty() || !last.takes(settings, samples[i])) {
      packs.emplace_back();
      last = {};
    }
    packs.back().push_back(i);
    last.add(settings, samples[i]);
  }
  return packs;
}

}  // namespace stoker

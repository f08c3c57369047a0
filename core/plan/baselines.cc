#include "plan/baselines.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "plan/padding.h"

namespace stoker {
namespace {

// Packs under way, and the room in each; lengths are aligned ones.
class Packs {
 public:
  Packs(std::span<const PlanSample> samples, const PackSettings& settings) : samples_(samples), settings_(settings) {}

  std::size_t size() const { return packs_.size(); }
  std::int64_t length(std::uint32_t sample) const { return aligned_tokens(settings_, samples_[sample].tokens); }
  std::int64_t room(std::size_t pack) const { return room_for_samples(settings_) - packs_[pack].aligned_tokens; }
  std::size_t open() {
    packs_.emplace_back();
    return packs_.size() - 1;
  }
  void add(std::size_t pack, std::uint32_t sample) {
    PackPlan& to = packs_[pack];
    const PlanSample& s = samples_[sample];
    to.members.push_back(sample);
    to.tokens += s.tokens;
    to.aligned_tokens += length(sample);
    to.target_tokens += s.target_tokens;
    to.patches += s.patches;
    to.images += s.images;
    to.videos += s.videos;
    to.cost_language += s.cost_language;
    to.cost_vision += s.cost_vision;
  }
  std::vector<PackPlan> take() {
    std::erase_if(packs_, [](const PackPlan& pack) { return pack.members.empty(); });
    for (PackPlan& pack : packs_) {
      std::sort(pack.members.begin(), pack.members.end());
      finish_pack(settings_, 0, pack);
    }
    return std::move(packs_);
  }

 private:
  std::span<const PlanSample> samples_;
  const PackSettings& settings_;
  std::vector<PackPlan> packs_;
};

void concatenate(std::span<const std::uint32_t> usable, Packs& packs) {
  for (const std::uint32_t i : usable) {
    const bool fits = packs.size() > 0 && packs.room(packs.size() - 1) >= packs.length(i);
    packs.add(fits ? packs.size() - 1 : packs.open(), i);
  }
}

// The first pack with room for so many tokens, by halving a tree of the largest rooms: O(log n).
void first_fit(std::span<const std::uint32_t> usable, Packs& packs) {
  std::size_t n_leaves = 1;
  while (n_leaves < usable.size()) n_leaves *= 2;
  std::vector<std::int64_t> most_room(2 * n_leaves, -1);  // [i]: of its leaves; a pack's own at n_leaves + pack
  for (const std::uint32_t i : usable) {
    std::size_t node = 1;
    if (most_room[node] >= packs.length(i)) {
      while (node < n_leaves) node = 2 * node + (most_room[2 * node] >= packs.length(i) ? 0 : 1);
    } else {
      node = n_leaves + packs.open();
    }
    packs.add(node - n_leaves, i);
    most_room[node] = packs.room(node - n_leaves);
    for (node /= 2; node >= 1; node /= 2) most_room[node] = std::max(most_room[2 * node], most_room[2 * node + 1]);
  }
}

void largest_first(std::vector<std::uint32_t> usable, Packs& packs) {
  std::stable_sort(usable.begin(), usable.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return packs.length(a) > packs.length(b); });
  std::set<std::pair<std::int64_t, std::size_t>> by_room;
  for (const std::uint32_t i : usable) {
    const auto fullest = by_room.lower_bound({packs.length(i), 0});
    const std::size_t pack = fullest == by_room.end() ? packs.open() : fullest->second;
    if (fullest != by_room.end()) by_room.erase(fullest);
    packs.add(pack, i);
    by_room.insert({packs.room(pack), pack});
  }
}

void equal_counts(std::span<const std::uint32_t> usable, std::int64_t room, Packs& packs) {
  std::int64_t tokens = 0;
  for (const std::uint32_t i : usable) tokens += packs.length(i);
  const auto n_packs = static_cast<std::size_t>(std::max<std::int64_t>(1, tokens / room));
  for (std::size_t pack = 0; pack < n_packs; ++pack) {
    packs.open();
    for (std::size_t k = pack * usable.size() / n_packs; k < (pack + 1) * usable.size() / n_packs; ++k) {
      packs.add(pack, usable[k]);
    }
  }
}

}  // namespace

Result<WindowPlan> plan_baseline(Baseline baseline, std::uint64_t window, std::span<const PlanSample> samples,
                                 const PackSettings& settings) {
  WindowPlan plan;
  plan.window = window;
  plan.n_samples = samples.size();
  std::vector<std::uint32_t> usable;
  for (std::uint32_t i = 0; i < samples.size(); ++i) {
    plan.n_trailing_unusable = samples[i].usable ? 0 : plan.n_trailing_unusable + 1;
    if (!samples[i].usable) continue;
    if (samples[i].tokens > longest_sample(settings)) {
      return Status(Reason::kInternal,
                    fmt::format("order index {} has {} tokens, a pack has room for {}", samples[i].order_index,
                                samples[i].tokens, longest_sample(settings)));
    }
    usable.push_back(i);
  }
  plan.n_usable = usable.size();
  if (usable.empty()) return plan;
  Packs packs(samples, settings);
  switch (baseline) {
    case Baseline::kConcatenate:
      concatenate(usable, packs);
      break;
    case Baseline::kFirstFit:
      first_fit(usable, packs);
      break;
    case Baseline::kLargestFirst:
      largest_first(std::move(usable), packs);
      break;
    case Baseline::kEqualCounts:
      equal_counts(usable, room_for_samples(settings), packs);
      break;
  }
  plan.packs = packs.take();
  return plan;
}

}  // namespace stoker

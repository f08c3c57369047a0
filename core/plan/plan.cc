#include "plan/plan.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <numeric>

#include <fmt/format.h>

#include "base/hash.h"
#include "plan/padding.h"

namespace stoker {
namespace {

// Packs are planned to be filled to 98.5 %: the free 1.5 % is what lets the last samples go where they even things out.
constexpr std::int64_t kFillPerMille = 985;
// A sample is placed among this many packs; a window of more is first dealt into groups of about this size, alike in
// every phase.
constexpr std::size_t kPacksPerGroup = 64;
// A pack's mean load in each phase, in the fixed-point units in which loads are compared.
constexpr int kLoadBits = 16;
// Bounds load * load below 2^62 together with kLoadBits.
constexpr std::size_t kMaxSamples = std::size_t{1} << 24;
constexpr std::int64_t kMaxLoad = 16;

// Shares of a mean pack's (tokens, language cost, vision cost), in units of 2^-kLoadBits.
using Load = std::array<std::int64_t, 3>;

struct Item {
  std::uint32_t sample = 0;
  std::int64_t tokens = 0;
  Load load{};
};

// A pack or a group of packs while it is filled.
struct Bin {
  Load load{};
  std::int64_t free_tokens = 0;
};

// total / n_packs becomes 2^kLoadBits. The shift keeps products inside 64 bits and drops only digits far below the
// noise.
struct Scale {
  Scale(std::int64_t total, std::size_t n_packs)
      : shift(std::max(0, static_cast<int>(std::bit_width(static_cast<std::uint64_t>(total))) - 40)),
        mean(std::max<std::int64_t>(1, (total >> shift) / static_cast<std::int64_t>(n_packs))) {}
  std::int64_t operator()(std::int64_t value) const {
    // Beyond kMaxLoad mean packs a load says nothing more; clamped so that dot products cannot overflow.
    return (std::min(value >> shift, mean * kMaxLoad) << kLoadBits) / mean;
  }
  int shift;
  std::int64_t mean;
};

std::int64_t dot(const Load& a, const Load& b) { return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]; }

void put(Bin& bin, const Item& item) {
  for (std::size_t d = 0; d < item.load.size(); ++d) bin.load[d] += item.load[d];
  bin.free_tokens -= item.tokens;
}

constexpr std::size_t kNowhere = std::numeric_limits<std::size_t>::max();

// The bin with room whose load, in the phases that the item is heavy in, is smallest: what adds least to the sum of
// squared loads.
std::size_t best_bin(std::span<const Bin> bins, const Item& item) {
  std::size_t best = kNowhere;
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (std::size_t i = 0; i < bins.size(); ++i) {
    if (bins[i].free_tokens < item.tokens) continue;
    const std::int64_t score = dot(bins[i].load, item.load);
    if (score < least) {
      least = score;
      best = i;
    }
  }
  return best;
}

struct Totals {
  std::int64_t tokens = 0;
  std::int64_t language = 0;
  std::int64_t vision = 0;
};

Result<Totals> check(std::span<const PlanSample> samples, const PackSettings& settings) {
  STOKER_CHECKED(check_pack_settings(settings));
  if (samples.size() > kMaxSamples) {
    return Status(Reason::kSettings,
                  fmt::format("window_samples is {}; it must be at most {}", samples.size(), kMaxSamples));
  }
  Totals totals;
  for (const PlanSample& s : samples) {
    if (!s.usable) continue;
    const bool is_sound = s.tokens >= 1 && s.cost_language >= 0 && s.cost_vision >= 0 && check_fits(settings, s).ok();
    if (!is_sound || __builtin_add_overflow(totals.language, s.cost_language, &totals.language) ||
        __builtin_add_overflow(totals.vision, s.cost_vision, &totals.vision)) {
      return Status(Reason::kInternal, fmt::format("order index {} cannot be planned: {} tokens, costs {} and {}",
                                                   s.order_index, s.tokens, s.cost_language, s.cost_vision));
    }
    totals.tokens += aligned_tokens(settings, s.tokens);
  }
  return totals;
}

// Items by their largest share, largest first: what is hard to place goes while there is room everywhere.
std::vector<Item> items_of(std::span<const PlanSample> samples, const PackSettings& settings, const Totals& totals,
                           std::size_t n_packs) {
  const std::array<Scale, 3> scale = {Scale(totals.tokens, n_packs), Scale(totals.language, n_packs),
                                      Scale(totals.vision, n_packs)};
  std::vector<Item> items;
  items.reserve(samples.size());
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const PlanSample& s = samples[i];
    if (!s.usable) continue;
    const std::int64_t aligned = aligned_tokens(settings, s.tokens);
    items.push_back({static_cast<std::uint32_t>(i),
                     aligned,
                     {scale[0](aligned), scale[1](s.cost_language), scale[2](s.cost_vision)}});
  }
  std::vector<std::pair<std::int64_t, std::uint32_t>> keys(items.size());
  for (std::uint32_t i = 0; i < items.size(); ++i) {
    keys[i] = {-*std::max_element(items[i].load.begin(), items[i].load.end()), i};
  }
  std::sort(keys.begin(), keys.end());
  std::vector<Item> sorted;
  sorted.reserve(items.size());
  for (const auto& [key, i] : keys) sorted.push_back(items[i]);
  return sorted;
}

void add_member(const PackSettings& settings, const PlanSample& s, std::uint32_t index, PackPlan& pack) {
  pack.members.push_back(index);
  pack.tokens += s.tokens;
  pack.aligned_tokens += aligned_tokens(settings, s.tokens);
  pack.target_tokens += s.target_tokens;
  pack.patches += s.patches;
  pack.images += s.images;
  pack.videos += s.videos;
  pack.cost_language += s.cost_language;
  pack.cost_vision += s.cost_vision;
}

// For every item the pack it goes to. Packs may become more than `n_packs` where samples do not fit as planned.
std::vector<std::uint32_t> place(std::span<const Item> items, std::size_t n_packs, std::int64_t room) {
  std::vector<std::uint32_t> pack_of(items.size());
  const std::size_t n_groups = std::max<std::size_t>(1, n_packs / kPacksPerGroup);
  const auto first_pack = [&](std::size_t group) { return group * n_packs / n_groups; };
  std::vector<Bin> groups(n_groups);
  std::vector<Bin> packs(n_packs, Bin{{}, room});
  for (std::size_t g = 0; g < n_groups; ++g) {
    const auto n = static_cast<std::int64_t>(first_pack(g + 1) - first_pack(g));
    groups[g].free_tokens = n * room;
  }
  std::vector<std::size_t> homeless;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const std::size_t group = best_bin(groups, items[i]);
    if (group != kNowhere) {
      const std::size_t first = first_pack(group);
      const std::size_t pack = best_bin(std::span(packs).subspan(first, first_pack(group + 1) - first), items[i]);
      if (pack != kNowhere) {
        put(groups[group], items[i]);
        put(packs[first + pack], items[i]);
        pack_of[i] = static_cast<std::uint32_t>(first + pack);
        continue;
      }
    }
    homeless.push_back(i);
  }
  for (const std::size_t i : homeless) {
    std::size_t pack = best_bin(packs, items[i]);
    if (pack == kNowhere) {
      pack = packs.size();
      packs.push_back(Bin{{}, room});
    }
    put(packs[pack], items[i]);
    pack_of[i] = static_cast<std::uint32_t>(pack);
  }
  return pack_of;
}

}  // namespace

Result<WindowPlan> plan_window(std::uint64_t window, std::span<const PlanSample> samples,
                               const PackSettings& settings) {
  STOKER_TRY(const Totals totals, check(samples, settings));
  WindowPlan plan;
  plan.window = window;
  plan.n_samples = samples.size();
  for (const PlanSample& s : samples) {
    plan.n_usable += s.usable ? 1 : 0;
    plan.n_trailing_unusable = s.usable ? 0 : plan.n_trailing_unusable + 1;
  }
  if (plan.n_usable == 0) return plan;

  const std::int64_t room = room_for_samples(settings);
  const std::int64_t planned_fill = std::max<std::int64_t>(1, room * kFillPerMille / 1000);
  const auto n_packs = totals.tokens <= room
                           ? std::size_t{1}
                           : static_cast<std::size_t>((totals.tokens + planned_fill - 1) / planned_fill);
  const std::vector<Item> items = items_of(samples, settings, totals, n_packs);
  const std::vector<std::uint32_t> pack_of_item = place(items, n_packs, room);

  std::vector<std::uint32_t> pack_of(samples.size());
  for (std::size_t i = 0; i < items.size(); ++i) pack_of[items[i].sample] = pack_of_item[i];
  const std::size_t n_opened = 1 + *std::max_element(pack_of_item.begin(), pack_of_item.end());
  std::vector<PackPlan> packs(std::max(n_packs, n_opened));
  for (std::uint32_t i = 0; i < samples.size(); ++i) {
    if (samples[i].usable) add_member(settings, samples[i], i, packs[pack_of[i]]);
  }
  std::erase_if(packs, [](const PackPlan& pack) { return pack.members.empty(); });
  for (PackPlan& pack : packs) finish_pack(settings, 0, pack);

  // One sequence in which neighbours cost alike; every other window runs the other way, so that the seams are alike
  // too.
  const bool is_rising = window % 2 != 0;
  std::sort(packs.begin(), packs.end(), [&](const PackPlan& a, const PackPlan& b) {
    if (a.cost() != b.cost()) return (a.cost() < b.cost()) == is_rising;
    return a.members.front() < b.members.front();
  });
  plan.packs = std::move(packs);
  return plan;
}

std::string WindowPlan::digest() const {
  Digest digest;
  digest.add_int(static_cast<std::int64_t>(window));
  digest.add_int(static_cast<std::int64_t>(n_samples));
  digest.add_int(static_cast<std::int64_t>(packs.size()));
  for (const PackPlan& pack : packs) {
    digest.add_int(static_cast<std::int64_t>(pack.members.size()));
    digest.add(pack.members.data(), pack.members.size() * sizeof(std::uint32_t));
    for (const std::int64_t sum : {pack.tokens, pack.target_tokens, pack.patches, std::int64_t{pack.images},
                                   pack.cost_language, pack.cost_vision}) {
      digest.add_int(sum);
    }
    if (pack.total_tokens != pack.tokens) digest.add_int(pack.total_tokens);  // none of it at the default settings
    if (pack.needs_image_dummy || pack.needs_video_dummy) {
      digest.add_int((pack.needs_image_dummy ? 1 : 0) + (pack.needs_video_dummy ? 2 : 0));
    }
  }
  return digest.hex();
}

}  // namespace stoker

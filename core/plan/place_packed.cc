#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <utility>

#include "plan/padding.h"
#include "plan/placing.h"

namespace stoker {
namespace {

// Packs are planned to be filled to 98.5 %: the free 1.5 % is what lets the last samples go where they even things out.
constexpr std::int64_t kFillPerMille = 985;
// A sample is placed among this many packs; a window of more is first dealt into groups of about this size, alike in
// every phase.
constexpr std::size_t kPacksPerGroup = 64;
// A pack's mean load in each phase, in the fixed-point units in which loads are compared.
constexpr int kLoadBits = 16;
// Bounds load * load below 2^62 together with kLoadBits and the number of samples.
constexpr std::int64_t kMaxLoad = 16;

// Shares of a mean pack's (tokens, language cost, vision cost), in units of 2^-kLoadBits.
using Load = std::array<std::int64_t, 3>;

// Vision calls that `vision_uniform` wants in every pack, as bits.
using Kinds = std::uint8_t;
constexpr Kinds kImageBit = 1;
constexpr Kinds kVideoBit = 2;

Kinds wanted_kinds(const PackSettings& settings) {
  const MissingVision missing = missing_vision(settings, 0, 0);
  return static_cast<Kinds>((missing.image ? kImageBit : 0) | (missing.video ? kVideoBit : 0));
}

struct Item {
  std::uint32_t sample = 0;
  Kinds kinds = 0;
  std::int64_t tokens = 0;  // aligned
  std::int64_t images = 0;  // and clips
  std::int64_t patches = 0;
  Load load{};
};

// A pack or a group of packs while it is filled.
struct Bin {
  Load load{};
  std::int64_t free_tokens = 0;
  std::int64_t free_images = 0;
  std::int64_t free_patches = 0;
  Kinds lacks = 0;
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
  bin.free_images -= item.images;
  bin.free_patches -= item.patches;
}

constexpr std::size_t kNowhere = std::numeric_limits<std::size_t>::max();

// The bin with room whose load, in the phases that the item is heavy in, is smallest: what adds least to the sum of
// squared loads. Of those that lack all of `needed`.
template <bool kHasLimits>
std::size_t best_bin(std::span<const Bin> bins, const Item& item, Kinds needed = 0) {
  std::size_t best = kNowhere;
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (std::size_t i = 0; i < bins.size(); ++i) {
    const Bin& bin = bins[i];
    if (bin.free_tokens < item.tokens) continue;
    if constexpr (kHasLimits) {
      if (bin.free_images < item.images || bin.free_patches < item.patches) continue;
      if ((bin.lacks & needed) != needed) continue;
    }
    const std::int64_t score = dot(bin.load, item.load);
    if (score < least) {
      least = score;
      best = i;
    }
  }
  return best;
}

struct Totals {
  std::int64_t n_samples = 0, tokens = 0, images = 0, patches = 0, language = 0, vision = 0;
};

Totals totals_of(std::span<const PlanSample> samples, const PackSettings& settings) {
  Totals totals;
  for (const PlanSample& s : samples) {
    if (!s.usable) continue;
    ++totals.n_samples;
    totals.tokens += aligned_tokens(settings, s.tokens);
    totals.images += std::int64_t{s.images} + s.videos;
    totals.patches += s.patches;
    totals.language += s.cost_language;
    totals.vision += s.cost_vision;
  }
  return totals;
}

// Packs that hold so much when filled as planned.
std::int64_t packs_for(std::int64_t total, std::int64_t limit) {
  if (limit <= 0 || total <= limit) return 1;
  const std::int64_t planned = std::max<std::int64_t>(1, limit * kFillPerMille / 1000);
  return (total + planned - 1) / planned;
}

std::size_t count_packs(const Totals& totals, const PackSettings& settings) {
  return static_cast<std::size_t>(
      std::max({packs_for(totals.tokens, room_for_samples(settings)), packs_for(totals.images, settings.max_images),
                packs_for(totals.patches, settings.max_patches)}));
}

// Items by their largest share, largest first: what is hard to place goes while there is room everywhere.
std::vector<Item> items_of(std::span<const PlanSample> samples, const PackSettings& settings, const Totals& totals,
                           std::size_t n_packs) {
  const std::array<Scale, 3> scale = {Scale(totals.tokens, n_packs), Scale(totals.language, n_packs),
                                      Scale(totals.vision, n_packs)};
  const bool is_by_cost = settings.balance == PackBalance::kFlops;
  std::vector<Item> items;
  items.reserve(samples.size());
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const PlanSample& s = samples[i];
    if (!s.usable) continue;
    Item& item = items.emplace_back();
    item.sample = static_cast<std::uint32_t>(i);
    item.kinds = static_cast<Kinds>((s.images > 0 ? kImageBit : 0) | (s.videos > 0 ? kVideoBit : 0));
    item.tokens = aligned_tokens(settings, s.tokens);
    item.images = std::int64_t{s.images} + s.videos;
    item.patches = s.patches;
    item.load = {scale[0](item.tokens), is_by_cost ? scale[1](s.cost_language) : 0,
                 is_by_cost ? scale[2](s.cost_vision) : 0};
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

// Fills packs item by item. Packs may become more than `n_packs` where samples do not fit as planned.
template <bool kHasLimits>
class Placer {
 public:
  Placer(std::span<const Item> items, std::size_t n_packs, const PackSettings& settings)
      : n_packs_(n_packs),
        n_groups_(std::max<std::size_t>(1, n_packs / kPacksPerGroup)),
        wanted_(wanted_kinds(settings)) {
    constexpr std::int64_t kEndless = std::int64_t{1} << 60;
    empty_ = {.free_tokens = room_for_samples(settings),
              .free_images = settings.max_images > 0 ? settings.max_images : kEndless,
              .free_patches = settings.max_patches > 0 ? settings.max_patches : kEndless,
              .lacks = wanted_};
    packs_.assign(n_packs, empty_);
    groups_.assign(n_groups_, Bin{.lacks = wanted_});
    for (std::size_t g = 0; g < n_groups_; ++g) {
      const auto n = static_cast<std::int64_t>(first_pack(g + 1) - first_pack(g));
      groups_[g].free_tokens = n * empty_.free_tokens;
      groups_[g].free_images = settings.max_images > 0 ? n * empty_.free_images : kEndless;
      groups_[g].free_patches = settings.max_patches > 0 ? n * empty_.free_patches : kEndless;
    }
    for (const Kinds kind : {kImageBit, kVideoBit}) {
      if ((wanted_ & kind) == 0) continue;
      n_lacking_[kind] = static_cast<std::int64_t>(n_packs);
      n_left_[kind] = std::count_if(items.begin(), items.end(), [&](const Item& i) { return (i.kinds & kind) != 0; });
    }
  }

  /// For every item the pack it goes to.
  std::vector<std::uint32_t> place(std::span<const Item> items) {
    std::vector<std::uint32_t> pack_of(items.size());
    std::vector<std::size_t> homeless;
    for (std::size_t i = 0; i < items.size(); ++i) {
      const std::size_t pack = find(items[i]);
      if (pack == kNowhere) {
        homeless.push_back(i);
        continue;
      }
      pack_of[i] = static_cast<std::uint32_t>(pack);
    }
    for (const std::size_t i : homeless) {
      std::size_t pack = best_bin<kHasLimits>(packs_, items[i]);
      if (pack == kNowhere) {
        pack = packs_.size();
        packs_.push_back(empty_);
      }
      put(packs_[pack], items[i]);
      pack_of[i] = static_cast<std::uint32_t>(pack);
    }
    return pack_of;
  }
  std::size_t n_packs() const { return packs_.size(); }

 private:
  std::size_t first_pack(std::size_t group) const { return group * n_packs_ / n_groups_; }

  // Places an item in a pack of the best group.
  std::size_t find(const Item& item) {
    if constexpr (!kHasLimits) return find_in(item, 0);
    const Kinds needed = scarce(item);
    std::size_t pack = find_in(item, needed);
    for (const Kinds one : {kVideoBit, kImageBit}) {
      if (pack == kNowhere && (needed & one) != 0 && needed != one) pack = find_in(item, one);
    }
    if (pack == kNowhere && needed != 0) pack = find_in(item, 0);
    for (const Kinds kind : {kImageBit, kVideoBit}) {
      if ((item.kinds & wanted_ & kind) != 0) --n_left_[kind];
    }
    return pack;
  }

  // Kinds that as few items are left of as there are packs that lack them: each must go to another one.
  Kinds scarce(const Item& item) const {
    Kinds needed = 0;
    for (const Kinds kind : {kImageBit, kVideoBit}) {
      const bool is_scarce = n_lacking_[kind] > 0 && n_left_[kind] <= 2 * n_lacking_[kind];
      if ((item.kinds & wanted_ & kind) != 0 && is_scarce) needed |= kind;
    }
    return needed;
  }

  std::size_t find_in(const Item& item, Kinds needed) {
    const std::size_t group = best_bin<kHasLimits>(groups_, item, needed);
    if (group == kNowhere) return kNowhere;
    const std::size_t first = first_pack(group);
    const auto packs = std::span(packs_).subspan(first, first_pack(group + 1) - first);
    const std::size_t at = best_bin<kHasLimits>(packs, item, needed);
    if (at == kNowhere) return kNowhere;
    put(groups_[group], item);
    put(packs[at], item);
    if constexpr (kHasLimits) settle(item, packs, at, groups_[group]);
    return first + at;
  }

  // What a pack, and its group, now has.
  void settle(const Item& item, std::span<Bin> packs, std::size_t at, Bin& group) {
    for (const Kinds kind : {kImageBit, kVideoBit}) {
      if ((packs[at].lacks & item.kinds & kind) == 0) continue;
      packs[at].lacks = static_cast<Kinds>(packs[at].lacks & ~kind);
      --n_lacking_[kind];
      const bool is_any = std::any_of(packs.begin(), packs.end(), [&](const Bin& b) { return (b.lacks & kind) != 0; });
      if (!is_any) group.lacks = static_cast<Kinds>(group.lacks & ~kind);
    }
  }

  const std::size_t n_packs_;
  const std::size_t n_groups_;
  const Kinds wanted_;
  Bin empty_;
  std::vector<Bin> packs_;
  std::vector<Bin> groups_;
  std::array<std::int64_t, 3> n_lacking_{};  // [kind]: packs without it,
  std::array<std::int64_t, 3> n_left_{};     // and items with it that have no place yet
};

template <bool kHasLimits>
Members place_items(std::span<const Item> items, std::size_t n_packs, const PackSettings& settings) {
  Placer<kHasLimits> placer(items, n_packs, settings);
  const std::vector<std::uint32_t> pack_of = placer.place(items);
  Members packs(placer.n_packs());
  for (std::size_t i = 0; i < items.size(); ++i) packs[pack_of[i]].push_back(items[i].sample);
  std::erase_if(packs, [](const auto& members) { return members.empty(); });
  for (auto& members : packs) std::sort(members.begin(), members.end());
  return packs;
}

}  // namespace

Members place_packed(std::span<const PlanSample> samples, const PackSettings& settings) {
  const Totals totals = totals_of(samples, settings);
  if (totals.n_samples == 0) return {};
  const std::size_t n_packs = count_packs(totals, settings);
  const std::vector<Item> items = items_of(samples, settings, totals, n_packs);
  const bool has_limits =
      settings.max_images > 0 || settings.max_patches > 0 || settings.vision_uniform != VisionUniform::kNone;
  Members packs =
      has_limits ? place_items<true>(items, n_packs, settings) : place_items<false>(items, n_packs, settings);
  if (settings.vision_uniform != VisionUniform::kNone) spread_vision(samples, settings, packs);
  return packs;
}

}  // namespace stoker

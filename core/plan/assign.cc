#include "plan/assign.h"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>
#include <tuple>

namespace stoker {
namespace {

// Language, vision and their sum, in fixed point: a mean pack's total is 2^kUnitBits. A pack counts for at most
// kMaxLoad of them, so that products of sums over 2^19 micro-batches stay inside 64 bits.
using Load = std::array<std::int64_t, 3>;
constexpr int kUnitBits = 14;
constexpr std::int64_t kMaxLoad = 64;
// Bounds the search: exchanges looked at, of each kind. Far more than steps of a few hundred packs need.
constexpr std::int64_t kMostTried = std::int64_t{1} << 18;

std::vector<Load> loads_of(std::span<const PhaseCosts> costs) {
  std::int64_t all = 0;
  for (const PhaseCosts& c : costs) all += c.language + c.vision;
  // The shift drops only digits far below what matters.
  const int shift = std::max(0, static_cast<int>(std::bit_width(static_cast<std::uint64_t>(all))) - 40);
  const std::int64_t mean = std::max<std::int64_t>(1, (all >> shift) / static_cast<std::int64_t>(costs.size()));
  std::vector<Load> loads;
  loads.reserve(costs.size());
  for (const PhaseCosts& c : costs) {
    const auto scaled = [&](std::int64_t value) {
      return (std::min(value >> shift, mean * kMaxLoad) << kUnitBits) / mean;
    };
    loads.push_back({scaled(c.language), scaled(c.vision), scaled(c.language + c.vision)});
  }
  return loads;
}

// Which packs share a micro-batch: what the slowest rank of each takes in each phase, summed, is to be small.
class Slicer {
 public:
  Slicer(std::span<const Load> loads, std::size_t n_ranks)
      : loads_(loads), n_ranks_(n_ranks), order_(loads.size()), most_(loads.size() / n_ranks) {
    std::iota(order_.begin(), order_.end(), 0U);
    std::stable_sort(order_.begin(), order_.end(), [&](std::uint32_t a, std::uint32_t b) {
      return loads[a][2] > loads[b][2];  // for the sum alone this is best
    });
    for (std::size_t m = 0; m < most_.size(); ++m) measure(m);
  }

  /// Packs, one micro-batch after another.
  std::vector<std::uint32_t> run() {
    if (n_ranks_ == 1 || most_.size() == 1) return order_;
    std::int64_t n_tried = 0;
    for (bool is_better = true; is_better && n_tried < kMostTried;) {
      is_better = false;
      for (std::size_t m = 0; m < most_.size(); ++m) is_better = improve(m, n_tried) || is_better;
    }
    return order_;
  }

 private:
  // The two largest of a micro-batch in each phase, and where the largest stands in `order_`.
  struct Most {
    Load first{}, second{};
    std::array<std::size_t, 3> at{};
  };

  std::size_t micro_of(std::size_t at) const { return at / n_ranks_; }
  const Load& load(std::size_t at) const { return loads_[order_[at]]; }

  void measure(std::size_t m) {
    Most& most = most_[m] = {};
    most.first.fill(-1);
    for (std::size_t at = m * n_ranks_; at < (m + 1) * n_ranks_; ++at) {
      for (std::size_t d = 0; d < 3; ++d) {
        const std::int64_t value = load(at)[d];
        if (value > most.first[d]) {
          most.second[d] = std::max<std::int64_t>(0, most.first[d]);
          most.first[d] = value;
          most.at[d] = at;
        } else {
          most.second[d] = std::max(most.second[d], value);
        }
      }
    }
  }

  // What the slowest ranks of `m` take, with `in` in place of what stands at `out`.
  std::int64_t slowest(std::size_t m, std::size_t out, const Load& in) const {
    std::int64_t sum = 0;
    for (std::size_t d = 0; d < 3; ++d) {
      sum += std::max(in[d], most_[m].at[d] == out ? most_[m].second[d] : most_[m].first[d]);
    }
    return sum;
  }
  std::int64_t slowest(std::size_t m) const { return most_[m].first[0] + most_[m].first[1] + most_[m].first[2]; }

  // The best exchange of a pack that makes `m` slow.
  bool improve(std::size_t m, std::int64_t& n_tried) {
    std::int64_t most_gained = 0;
    std::size_t from = 0, to = 0;
    for (std::size_t d = 0; d < 3; ++d) {
      const std::size_t out = most_[m].at[d];
      for (std::size_t at = 0; at < order_.size(); ++at) {
        const std::size_t other = micro_of(at);
        if (other == m) continue;
        ++n_tried;
        const std::int64_t gained =
            slowest(m) + slowest(other) - slowest(m, out, load(at)) - slowest(other, at, load(out));
        if (gained > most_gained) std::tie(most_gained, from, to) = std::tuple(gained, out, at);
      }
    }
    if (most_gained == 0) return false;
    std::swap(order_[from], order_[to]);
    measure(m);
    measure(micro_of(to));
    return true;
  }

  const std::span<const Load> loads_;
  const std::size_t n_ranks_;
  std::vector<std::uint32_t> order_;
  std::vector<Most> most_;  // of each micro-batch
};

// Which rank takes which pack of each micro-batch: the squares of the ranks' sums are to be small.
class Dealer {
 public:
  Dealer(std::span<const Load> loads, std::size_t n_ranks, std::vector<std::uint32_t> order)
      : loads_(loads), n_ranks_(n_ranks), pack_(std::move(order)), sums_(n_ranks) {}

  /// (n_micro_batches, n_ranks): the pack that each has.
  std::vector<std::uint32_t> run() {
    if (n_ranks_ == 1 || pack_.size() == n_ranks_) return pack_;
    for (std::size_t m = 0; m < pack_.size() / n_ranks_; ++m) deal(m);
    std::int64_t n_tried = 0;
    for (bool is_better = true; is_better && n_tried < kMostTried;) {
      is_better = false;
      for (std::size_t d = 0; d < 3; ++d) is_better = improve(d, n_tried) || is_better;
    }
    return pack_;
  }

 private:
  static std::int64_t dot(const Load& a, const Load& b) { return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]; }
  static void add(Load& sum, const Load& load, std::int64_t n) {
    for (std::size_t d = 0; d < 3; ++d) sum[d] += n * load[d];
  }

  // Dearest packs first, each to the rank that has least of what it is heavy in.
  void deal(std::size_t m) {
    const auto packs = std::span(pack_).subspan(m * n_ranks_, n_ranks_);
    std::vector<std::uint32_t> todo(packs.begin(), packs.end());
    std::stable_sort(todo.begin(), todo.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return loads_[a][2] > loads_[b][2]; });
    std::vector<std::uint32_t> free(n_ranks_);
    std::iota(free.begin(), free.end(), 0U);
    for (const std::uint32_t pack : todo) {
      auto best = free.begin();
      std::int64_t least = dot(sums_[*best], loads_[pack]);
      for (auto rank = free.begin() + 1; rank != free.end(); ++rank) {
        const std::int64_t score = dot(sums_[*rank], loads_[pack]);
        if (score < least) std::tie(least, best) = std::tuple(score, rank);
      }
      packs[*best] = pack;
      add(sums_[*best], loads_[pack], 1);
      free.erase(best);
    }
  }

  // The best exchange, inside a micro-batch, with the rank that has most in phase `d`.
  bool improve(std::size_t d, std::int64_t& n_tried) {
    const auto dearest = static_cast<std::size_t>(
        std::max_element(sums_.begin(), sums_.end(), [&](const Load& a, const Load& b) { return a[d] < b[d]; }) -
        sums_.begin());
    std::int64_t most_gained = 0;
    std::size_t from = 0, to = 0;
    for (std::size_t m = 0; m < pack_.size() / n_ranks_; ++m) {
      for (std::size_t rank = 0; rank < n_ranks_; ++rank) {
        if (rank == dearest) continue;
        ++n_tried;
        const std::size_t a = m * n_ranks_ + dearest, b = m * n_ranks_ + rank;
        Load change = loads_[pack_[b]];
        add(change, loads_[pack_[a]], -1);
        // |s + c|^2 + |t - c|^2 - |s|^2 - |t|^2 = 2 c (s - t + c)
        Load between = sums_[dearest];
        add(between, sums_[rank], -1);
        add(between, change, 1);
        const std::int64_t gained = -dot(change, between);
        if (gained > most_gained) std::tie(most_gained, from, to) = std::tuple(gained, a, b);
      }
    }
    if (most_gained == 0) return false;
    const std::size_t other = to % n_ranks_;
    add(sums_[dearest], loads_[pack_[from]], -1);
    add(sums_[other], loads_[pack_[to]], -1);
    std::swap(pack_[from], pack_[to]);
    add(sums_[dearest], loads_[pack_[from]], 1);
    add(sums_[other], loads_[pack_[to]], 1);
    return true;
  }

  const std::span<const Load> loads_;
  const std::size_t n_ranks_;
  std::vector<std::uint32_t> pack_;
  std::vector<Load> sums_;  // of each rank
};

}  // namespace

std::vector<PackPlace> assign_step(std::span<const PhaseCosts> costs, std::int32_t dp_size) {
  const auto n_ranks = static_cast<std::size_t>(dp_size);
  const std::vector<Load> loads = loads_of(costs);
  const std::vector<std::uint32_t> packs = Dealer(loads, n_ranks, Slicer(loads, n_ranks).run()).run();
  std::vector<PackPlace> places(costs.size());
  for (std::size_t i = 0; i < packs.size(); ++i) {
    places[packs[i]] = {.rank = static_cast<std::int32_t>(i % n_ranks),
                        .micro_batch = static_cast<std::int32_t>(i / n_ranks)};
  }
  return places;
}

}  // namespace stoker

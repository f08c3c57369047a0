#include <algorithm>
#include <array>
#include <cstdlib>
#include <optional>
#include <tuple>

#include "plan/filling.h"
#include "plan/placing.h"

namespace stoker {
namespace {

constexpr std::size_t kNeighbours = 64;   // packs that a lacking one is held against
constexpr std::size_t kMostTried = 1024;  // exchanges, those that change lengths least
constexpr std::uint32_t kNothing = UINT32_MAX;

// Of images and clips.
using Counts = std::array<std::int64_t, 2>;

Counts kinds_of(const PlanSample& s) { return {s.images > 0 ? 1 : 0, s.videos > 0 ? 1 : 0}; }

class Spreader {
 public:
  Spreader(std::span<const PlanSample> samples, const PackSettings& settings, Members& packs)
      : samples_(samples), settings_(settings), packs_(packs), counts_(packs.size()) {
    const MissingVision all = missing_vision(settings, 0, 0);
    is_wanted_ = {all.image, all.video};
    for (std::size_t p = 0; p < packs.size(); ++p) {
      for (const std::uint32_t i : packs[p]) add(counts_[p], i, 1);
    }
  }

  void run() {
    for (const std::size_t kind : {1U, 0U}) {  // clips are rarer
      if (!is_wanted_[kind]) continue;
      auto n_donors = std::count_if(counts_.begin(), counts_.end(), [&](const Counts& c) { return c[kind] > 1; });
      for (std::size_t p = 0; p < packs_.size() && n_donors > 0; ++p) {
        if (counts_[p][kind] > 0) continue;
        if (const std::optional<Exchange> found = best(p, kind)) {
          exchange(p, *found);
          if (counts_[found->donor][kind] == 1) --n_donors;
        }
      }
    }
  }

 private:
  struct Exchange {
    std::int64_t change = 0;  // of the packs' lengths, in tokens
    std::size_t donor = 0;
    std::uint32_t given = 0;            // a sample of the donor's with what is lacking
    std::uint32_t returned = kNothing;  // one without

    auto operator<=>(const Exchange&) const = default;
  };

  void add(Counts& counts, std::uint32_t sample, std::int64_t n) const {
    const Counts kinds = kinds_of(samples_[sample]);
    for (std::size_t k = 0; k < kinds.size(); ++k) counts[k] += n * kinds[k];
  }

  // Whether `pack` has all that it had of what is wanted.
  bool keeps(std::size_t pack, std::uint32_t out, std::uint32_t in) const {
    Counts after = counts_[pack];
    if (out != kNothing) add(after, out, -1);
    if (in != kNothing) add(after, in, 1);
    for (std::size_t k = 0; k < after.size(); ++k) {
      if (is_wanted_[k] && after[k] == 0 && counts_[pack][k] > 0) return false;
    }
    return true;
  }

  bool fits(std::size_t pack, std::uint32_t out, std::uint32_t in) const {
    Filling filling;
    for (const std::uint32_t i : packs_[pack]) {
      if (i != out) filling.add(settings_, samples_[i]);
    }
    if (in != kNothing) filling.add(settings_, samples_[in]);
    return filling.n_samples() > 0 && filling.fits(settings_);
  }

  std::optional<Exchange> best(std::size_t lacking, std::size_t kind) const {
    std::vector<Exchange> all;
    std::size_t n_seen = 0;
    for (std::size_t step = 1; step < packs_.size() && n_seen < kNeighbours; ++step) {
      const std::size_t donor = (lacking + step) % packs_.size();
      if (counts_[donor][kind] < 2) continue;
      ++n_seen;
      for (const std::uint32_t given : packs_[donor]) {
        if (kinds_of(samples_[given])[kind] == 0) continue;
        all.push_back({samples_[given].tokens, donor, given, kNothing});
        for (const std::uint32_t returned : packs_[lacking]) {
          all.push_back({std::abs(samples_[given].tokens - samples_[returned].tokens), donor, given, returned});
        }
      }
    }
    const auto n = static_cast<std::ptrdiff_t>(std::min(all.size(), kMostTried));
    std::partial_sort(all.begin(), all.begin() + n, all.end());
    for (std::ptrdiff_t i = 0; i < n; ++i) {
      const Exchange& e = all[static_cast<std::size_t>(i)];
      if (keeps(lacking, e.returned, e.given) && keeps(e.donor, e.given, e.returned) &&
          fits(lacking, e.returned, e.given) && fits(e.donor, e.given, e.returned)) {
        return e;
      }
    }
    return std::nullopt;
  }

  void exchange(std::size_t lacking, const Exchange& e) {
    const auto swap_member = [&](std::size_t pack, std::uint32_t out, std::uint32_t in) {
      std::vector<std::uint32_t>& members = packs_[pack];
      if (out != kNothing) std::erase(members, out), add(counts_[pack], out, -1);
      if (in == kNothing) return;
      members.insert(std::lower_bound(members.begin(), members.end(), in), in);
      add(counts_[pack], in, 1);
    };
    swap_member(lacking, e.returned, e.given);
    swap_member(e.donor, e.given, e.returned);
  }

  const std::span<const PlanSample> samples_;
  const PackSettings& settings_;
  Members& packs_;
  std::vector<Counts> counts_;  // samples with each kind
  std::array<bool, 2> is_wanted_{};
};

}  // namespace

void spread_vision(std::span<const PlanSample> samples, const PackSettings& settings, Members& packs) {
  Spreader(samples, settings, packs).run();
}

}  // namespace stoker

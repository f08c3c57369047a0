#include "plan/mixture.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

namespace stoker {
namespace {

__extension__ using Wide = unsigned __int128;  // GCC and Clang have it on all 64-bit targets
constexpr std::uint64_t kMost = std::uint64_t{1} << 62;

Status too_large(std::size_t entry) {
  return {Reason::kSettings, fmt::format("data[{}]: more than 2^62 samples in an epoch", entry)};
}

// Whole parts first, then one each to the largest remainders, earlier entries before later ones.
std::vector<std::uint64_t> divide(std::uint64_t n, std::span<const Share> shares) {
  Wide all = 0;
  for (const Share& share : shares) all += share.value;
  std::vector<std::uint64_t> parts(shares.size());
  std::vector<Wide> remainders(shares.size());
  std::uint64_t left = n;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    const Wide exact = Wide{n} * shares[i].value;
    parts[i] = static_cast<std::uint64_t>(exact / all);
    remainders[i] = exact % all;
    left -= parts[i];
  }
  std::vector<std::size_t> by_remainder(shares.size());
  std::iota(by_remainder.begin(), by_remainder.end(), std::size_t{0});
  std::stable_sort(by_remainder.begin(), by_remainder.end(),
                   [&](std::size_t a, std::size_t b) { return remainders[a] > remainders[b]; });
  for (std::size_t i = 0; i < left; ++i) ++parts[by_remainder[i]];
  return parts;
}

}  // namespace

Result<std::vector<std::uint64_t>> samples_per_epoch(std::span<const Share> shares,
                                                     std::span<const std::uint64_t> n_rows) {
  const auto is_weight = [](const Share& share) { return share.kind == Share::Kind::kWeight; };
  const auto n_weights = std::count_if(shares.begin(), shares.end(), is_weight);
  if (n_weights != 0 && n_weights != std::ssize(shares)) {
    return Status(Reason::kSettings, "data: give all entries a weight or none: a weight is a part of the whole");
  }
  std::vector<std::uint64_t> n_samples(shares.size());
  std::uint64_t all = 0;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    const Share& share = shares[i];
    if (share.value == 0 || share.value > kMost) {
      return Status(Reason::kSettings, fmt::format("data[{}]: a weight, repeat or number of samples must be positive, "
                                                   "and not astronomical",
                                                   i));
    }
    Wide n = n_rows[i];
    if (share.kind == Share::Kind::kRepeat) n = (n * share.value + kShareUnit / 2) / kShareUnit;
    if (share.kind == Share::Kind::kSamples) n = share.value;
    if (n > kMost - all) return too_large(i);
    if (share.kind != Share::Kind::kOnce && n_rows[i] == 0) {
      return Status(Reason::kNoData, fmt::format("data[{}] holds no row", i));
    }
    n_samples[i] = static_cast<std::uint64_t>(n);
    all += n_samples[i];
  }
  if (n_weights > 0) n_samples = divide(all, shares);
  return n_samples;
}

}  // namespace stoker

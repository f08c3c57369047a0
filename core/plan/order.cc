#include "plan/order.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "base/rng.h"

namespace stoker {
namespace {

constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15ULL;
// Four rounds hide the structure from statistics; eight also mix the domains of a few bits that small manifests have.
constexpr int kRounds = 8;

std::uint64_t absorb(std::uint64_t state, std::uint64_t word) { return mix64((state ^ word) + kGolden); }

std::uint64_t absorb(std::uint64_t state, const std::string& text) {
  state = absorb(state, text.size());
  for (const char c : text) state = absorb(state, static_cast<unsigned char>(c));
  return state;
}

}  // namespace

std::uint64_t permute_index(std::uint64_t index, std::uint64_t n, std::uint64_t key) {
  if (n <= 1) return 0;
  const int bits = std::max(2, static_cast<int>(std::bit_width(n - 1)));
  // The halves swap roles every round, so they may differ in width; an even number of rounds puts them back in place.
  const int low_bits = bits / 2;
  const int high_bits = bits - low_bits;
  const std::uint64_t low_mask = (std::uint64_t{1} << low_bits) - 1;
  const std::uint64_t high_mask = (std::uint64_t{1} << high_bits) - 1;
  std::uint64_t at = index;
  do {
    std::uint64_t low = at & low_mask;
    std::uint64_t high = at >> low_bits;
    for (int round = 0; round < kRounds; round += 2) {
      const auto r = static_cast<std::uint64_t>(round);
      low ^= mix64(high + key + r * kGolden) & low_mask;
      high ^= mix64(low + key + (r + 1) * kGolden) & high_mask;
    }
    at = (high << low_bits) | low;
  } while (at >=
           n);  // the domain is under twice n (n > 2): fewer than two walks on average, and a walk always comes back
  return at;
}

Order::Order(std::vector<std::uint64_t> first_row, std::uint64_t key, Shuffle shuffle,
             std::optional<std::uint64_t> size)
    : first_row_(std::move(first_row)), key_(key), shuffle_(shuffle), size_(size) {}

Result<Order> Order::make(std::vector<SourceRows> sources, std::uint64_t seed, Shuffle shuffle,
                          std::optional<std::uint64_t> epochs) {
  constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  std::vector<std::uint64_t> first_row = {0};
  std::uint64_t key = absorb(0, seed);
  for (const SourceRows& source : sources) {
    if (source.n_rows > kMost - first_row.back()) return Status(Reason::kSettings, "more rows than positions (2^63)");
    first_row.push_back(first_row.back() + source.n_rows);
    key = absorb(absorb(key, source.fingerprint), source.n_rows);
  }
  const std::uint64_t n_rows = first_row.back();
  if (n_rows == 0) return Status(Reason::kNoData, "the manifests hold no row");
  std::optional<std::uint64_t> size;
  if (epochs) {
    if (*epochs == 0) return Status(Reason::kSettings, "epochs must be at least 1");
    if (*epochs > kMost / n_rows) return Status(Reason::kSettings, "epochs * rows passes 2^63 positions");
    size = *epochs * n_rows;
  }
  return Order(std::move(first_row), key, shuffle, size);
}

OrderEntry Order::at(std::uint64_t position) const {
  const std::uint64_t n = rows_per_pass();
  OrderEntry entry;
  entry.pass = position / n;
  std::uint64_t row = position % n;
  if (shuffle_ == Shuffle::kRows) row = permute_index(row, n, absorb(key_, entry.pass));
  const auto after = std::upper_bound(first_row_.begin(), first_row_.end(), row);
  entry.source = static_cast<std::uint32_t>(after - first_row_.begin() - 1);
  entry.row = row - first_row_[entry.source];
  return entry;
}

}  // namespace stoker

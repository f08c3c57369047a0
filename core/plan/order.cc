#include "plan/order.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "base/rng.h"
#include "plan/keys.h"

namespace stoker {
namespace {

// Four rounds hide the structure from statistics; eight also mix the domains of a few bits that small manifests have.
constexpr int kRounds = 8;
constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());  // positions

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

Result<Order> Order::make(std::vector<SourceRows> sources, std::uint64_t seed, Shuffle shuffle,
                          std::optional<std::uint64_t> epochs, std::span<const MixtureEntry> mixture) {
  Order order;
  order.first_row_ = {0};
  order.shuffle_ = shuffle;
  order.key_ = absorb(0, seed);
  for (const SourceRows& source : sources) {
    if (source.n_rows > kMost - order.first_row_.back())
      return Status(Reason::kSettings, "more rows than positions (2^63)");
    order.first_row_.push_back(order.first_row_.back() + source.n_rows);
    order.key_ = absorb(absorb(order.key_, source.fingerprint), source.n_rows);
  }
  if (order.first_row_.back() == 0) return Status(Reason::kNoData, "the manifests hold no row");
  STOKER_CHECKED(order.mix(mixture));
  const std::uint64_t n = order.rows_per_pass();
  if (n == 0) return Status(Reason::kNoData, "the mixture takes no sample");
  if (epochs) {
    if (*epochs == 0) return Status(Reason::kSettings, "epochs must be at least 1");
    if (*epochs > kMost / n) return Status(Reason::kSettings, "epochs * rows passes 2^63 positions");
    order.size_ = *epochs * n;
  }
  return order;
}

Status Order::mix(std::span<const MixtureEntry> mixture) {
  std::size_t source = 0;
  bool is_each_row_once = true;
  std::vector<Entry> entries;
  std::vector<std::uint64_t> first_slot = {0};
  for (const MixtureEntry& part : mixture) {
    const std::size_t end = source + part.n_sources;
    if (end >= first_row_.size()) return {Reason::kInternal, "a mixture of more sources than there are"};
    const std::uint64_t first = first_row_[source];
    entries.push_back({first, first_row_[end] - first, absorb(absorb(key_, entries.size()), kGolden)});
    if (entries.back().n_rows == 0 && part.samples_per_epoch > 0) {
      return {Reason::kNoData, "an entry of the mixture holds no row"};
    }
    is_each_row_once = is_each_row_once && entries.back().n_rows == part.samples_per_epoch;
    if (part.samples_per_epoch > kMost - first_slot.back()) {
      return {Reason::kSettings, "an epoch passes 2^63 positions"};
    }
    first_slot.push_back(first_slot.back() + part.samples_per_epoch);
    source = end;
  }
  if (mixture.empty() || is_each_row_once) return {};
  if (source + 1 != first_row_.size()) return {Reason::kInternal, "a mixture that leaves sources out"};
  entries_ = std::move(entries);
  first_slot_ = std::move(first_slot);
  for (const MixtureEntry& part : mixture) key_ = absorb(key_, part.samples_per_epoch);
  return {};
}

void Order::place(std::uint64_t row, OrderEntry& entry) const {
  const auto after = std::upper_bound(first_row_.begin(), first_row_.end(), row);
  entry.source = static_cast<std::uint32_t>(after - first_row_.begin() - 1);
  entry.row = row - first_row_[entry.source];
}

OrderEntry Order::mixed_at(std::uint64_t position) const {
  const std::uint64_t n = first_slot_.back();
  const std::uint64_t epoch = position / n;
  std::uint64_t slot = position % n;
  if (shuffle_ == Shuffle::kRows) slot = permute_index(slot, n, absorb(key_, epoch));
  const auto after = std::upper_bound(first_slot_.begin(), first_slot_.end(), slot);
  const auto i = static_cast<std::size_t>(after - first_slot_.begin() - 1);
  const Entry& from = entries_[i];
  // Its how manieth sample this is, over all epochs.
  const std::uint64_t draw = epoch * (first_slot_[i + 1] - first_slot_[i]) + (slot - first_slot_[i]);
  OrderEntry entry;
  entry.pass = draw / from.n_rows;
  std::uint64_t row = draw % from.n_rows;
  if (shuffle_ == Shuffle::kRows) row = permute_index(row, from.n_rows, absorb(from.key, entry.pass));
  place(from.first_row + row, entry);
  return entry;
}

OrderEntry Order::at(std::uint64_t position) const {
  if (!entries_.empty()) return mixed_at(position);
  const std::uint64_t n = first_row_.back();
  OrderEntry entry;
  entry.pass = position / n;
  std::uint64_t row = position % n;
  if (shuffle_ == Shuffle::kRows) row = permute_index(row, n, absorb(key_, entry.pass));
  place(row, entry);
  return entry;
}

}  // namespace stoker

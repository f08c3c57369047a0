#include "pipeline/chunk_windows.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace stoker {
namespace {

constexpr int kRowBits = 20;
static_assert(ChunkOrder::kMostRows == std::uint64_t{1} << kRowBits);
constexpr std::size_t kMostRowsPerGroup = std::size_t{1} << 24;  // 128 MiB of offsets
constexpr std::size_t kGroupsKept = 2;  // the planner's, and one of whoever asks what a sample is

}  // namespace

ChunkWindows::ChunkWindows(ChunkOrder order, bool held_out)
    : order_(std::move(order)), held_out_(held_out), kept_(std::make_unique<Kept>()) {}

Result<std::shared_ptr<const ChunkWindows::Group>> ChunkWindows::group_of(const ChunkOrder::Place& place,
                                                                          std::span<const Manifest* const> manifests,
                                                                          const std::stop_token& stop) const {
  {
    MutexLock lock(kept_->mu);
    for (const auto& group : kept_->groups) {
      if (group->pass == place.pass && group->group == place.group) return group;
    }
  }
  auto group = std::make_shared<Group>();
  group->pass = place.pass;
  group->group = place.group;
  group->chunks = order_.chunks_of(place.pass, place.group);
  for (const Chunk& chunk : group->chunks) {
    group->first.push_back(group->offsets.size());
    STOKER_CHECKED(
        manifests[chunk.source]->find_rows(chunk.begin, chunk.end, held_out_, kMostRowsPerGroup, group->offsets, stop));
  }
  group->first.push_back(group->offsets.size());
  MutexLock lock(kept_->mu);
  if (kept_->groups.size() >= kGroupsKept) kept_->groups.erase(kept_->groups.begin());
  kept_->groups.push_back(group);
  return std::shared_ptr<const Group>(std::move(group));
}

Result<OrderWindow> ChunkWindows::window(std::uint64_t window, std::span<const Manifest* const> manifests,
                                         const std::stop_token& stop) const {
  const ChunkOrder::Place place = order_.place_of(window);
  STOKER_TRY(const auto group, group_of(place, manifests, stop));
  const std::vector<std::uint64_t> rows = order_.rows_of(place, group->offsets.size());
  if (rows.size() > ChunkOrder::kMostRows) {
    return Status(Reason::kSettings, fmt::format("a window of chunks has {} rows, {} at most: make chunks.size smaller",
                                                 rows.size(), ChunkOrder::kMostRows));
  }
  OrderWindow out{.window = window, .places = {}};
  out.places.reserve(rows.size());
  for (const std::uint64_t row : rows) {
    const auto after = std::upper_bound(group->first.begin(), group->first.end(), row);
    const Chunk& chunk = group->chunks[static_cast<std::size_t>(after - group->first.begin() - 1)];
    out.places.push_back({(window << kRowBits) + out.places.size(),
                          {.pass = place.pass, .source = chunk.source, .row = group->offsets[row]}});
  }
  out.n_until_end = order_.n_before(window + 1);
  return out;
}

Result<OrderEntry> ChunkWindows::at(std::uint64_t order_index, std::span<const Manifest* const> manifests,
                                    const std::stop_token& stop) const {
  const std::uint64_t number = order_index >> kRowBits;
  const std::uint64_t row = order_index & (ChunkOrder::kMostRows - 1);
  if (number < order_.n_windows()) {
    STOKER_TRY(const OrderWindow found, window(number, manifests, stop));
    if (row < found.places.size()) return found.places[row].entry;
  }
  return Status(Reason::kSettings, fmt::format("there is no sample {} in the order", order_index));
}

}  // namespace stoker

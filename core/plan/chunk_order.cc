#include "plan/chunk_order.h"

#include <algorithm>
#include <limits>

#include "plan/keys.h"
#include "plan/order.h"

namespace stoker {
namespace {

__extension__ using Wide = unsigned __int128;                   // GCC and Clang have it on all 64-bit targets
constexpr std::uint64_t kMostWindows = std::uint64_t{1} << 43;  // times kMostRows: a sample's number has 63 bits

// Where the k-th of `parts` nearly equal parts of n begins.
std::uint64_t part_begin(std::uint64_t n, std::uint64_t k, std::uint64_t parts) {
  return static_cast<std::uint64_t>(Wide{n} * k / parts);
}

}  // namespace

Result<ChunkOrder> ChunkOrder::make(const std::vector<SourceBytes>& sources, std::uint64_t seed,
                                    const ChunkSettings& settings, std::uint64_t window_samples,
                                    std::optional<std::uint64_t> epochs) {
  if (settings.chunk_bytes == 0 || settings.chunks_per_group == 0 || window_samples == 0) {
    return Status(Reason::kSettings, "chunks.size, chunks.per_group and window_samples must be at least 1");
  }
  ChunkOrder order;
  order.settings_ = settings;
  order.epochs_ = epochs;
  order.first_chunk_ = {0};
  order.key_ = absorb(absorb(absorb(0, seed), settings.chunk_bytes), settings.chunks_per_group);
  for (const SourceBytes& source : sources) {
    const std::uint64_t n_chunks =
        source.n_bytes / settings.chunk_bytes + (source.n_bytes % settings.chunk_bytes == 0 ? 0 : 1);
    order.n_bytes_.push_back(source.n_bytes);
    order.first_chunk_.push_back(order.first_chunk_.back() + n_chunks);
    order.n_rows_ += source.n_rows;
    order.key_ = absorb(absorb(order.key_, source.fingerprint), source.n_bytes);
  }
  const std::uint64_t n_chunks = order.first_chunk_.back();
  if (n_chunks == 0) return Status(Reason::kNoData, "the manifests hold no row");
  order.n_groups_ = (n_chunks - 1) / settings.chunks_per_group + 1;
  const std::uint64_t rows_per_group = order.n_rows_ / order.n_groups_;
  order.parts_ = std::max<std::uint64_t>((rows_per_group + window_samples / 2) / window_samples, 1);
  if (epochs && *epochs == 0) return Status(Reason::kSettings, "epochs must be at least 1");
  if (order.parts_ > kMostWindows / order.n_groups_ || epochs.value_or(1) > kMostWindows / order.windows_per_pass()) {
    return Status(Reason::kSettings, "the run passes 2^43 windows: make window_samples or chunks.size larger");
  }
  return order;
}

std::uint64_t ChunkOrder::n_windows() const {
  return epochs_ ? *epochs_ * windows_per_pass() : std::numeric_limits<std::uint64_t>::max();
}

std::uint64_t ChunkOrder::n_before(std::uint64_t window) const {
  const Place at = place_of(window);
  return at.pass * n_rows_ + part_begin(n_rows_, at.group * parts_ + at.part, windows_per_pass());
}

ChunkOrder::Place ChunkOrder::place_of(std::uint64_t window) const {
  const std::uint64_t in_pass = window % windows_per_pass();
  return {window / windows_per_pass(), in_pass / parts_, in_pass % parts_};
}

std::vector<Chunk> ChunkOrder::chunks_of(std::uint64_t pass, std::uint64_t group) const {
  const std::uint64_t n = first_chunk_.back();
  const std::uint64_t key = absorb(key_, pass);
  std::vector<Chunk> chunks;
  for (std::uint64_t i = part_begin(n, group, n_groups_); i < part_begin(n, group + 1, n_groups_); ++i) {
    const std::uint64_t chunk = permute_index(i, n, key);
    const auto after = std::upper_bound(first_chunk_.begin(), first_chunk_.end(), chunk);
    const auto source = static_cast<std::uint32_t>(after - first_chunk_.begin() - 1);
    const std::uint64_t begin = (chunk - first_chunk_[source]) * settings_.chunk_bytes;
    chunks.push_back({source, begin, begin + std::min(settings_.chunk_bytes, n_bytes_[source] - begin)});
  }
  return chunks;
}

std::vector<std::uint64_t> ChunkOrder::rows_of(const Place& place, std::uint64_t n_rows) const {
  const std::uint64_t key = absorb(absorb(absorb(key_, place.pass), place.group), kGolden);
  std::vector<std::uint64_t> rows;
  const std::uint64_t end = part_begin(n_rows, place.part + 1, parts_);
  for (std::uint64_t i = part_begin(n_rows, place.part, parts_); i < end; ++i) {
    rows.push_back(permute_index(i, n_rows, key));
  }
  return rows;
}

}  // namespace stoker

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stop_token>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "manifest/index.h"
#include "plan/chunk_order.h"
#include "plan/order.h"

namespace stoker {

/// The windows of a ChunkOrder: a window's group is read, once, for where its rows begin. A row's number is its byte
/// offset; a sample's number is (window << 20) + its place in the window. Threads: any.
class ChunkWindows {
 public:
  /// @param held_out  The side of the manifests' split that is read.
  ChunkWindows(ChunkOrder order, bool held_out);

  const ChunkOrder& order() const { return order_; }
  /// @param manifests  The order's sources, opened with RowNumbers::kOffsets.
  /// @return MANIFEST; SETTINGS for more rows than a group or a window may have; STOPPED. Blocks for the disk.
  Result<OrderWindow> window(std::uint64_t window, std::span<const Manifest* const> manifests,
                             const std::stop_token& stop) const;
  /// @return SETTINGS if there is no such sample; as window().
  Result<OrderEntry> at(std::uint64_t order_index, std::span<const Manifest* const> manifests,
                        const std::stop_token& stop) const;

 private:
  struct Group {
    std::uint64_t pass = 0;
    std::uint64_t group = 0;
    std::vector<Chunk> chunks;
    std::vector<std::size_t> first;      // (chunks + 1): where each chunk's rows start, then how many there are
    std::vector<std::uint64_t> offsets;  // of all rows, chunk after chunk
  };
  struct Kept {
    Mutex mu;
    std::vector<std::shared_ptr<const Group>> groups STOKER_GUARDED_BY(mu);  // the last ones read; at most two
  };
  Result<std::shared_ptr<const Group>> group_of(const ChunkOrder::Place& place,
                                                std::span<const Manifest* const> manifests,
                                                const std::stop_token& stop) const;

  ChunkOrder order_;
  bool held_out_;
  std::unique_ptr<Kept> kept_;
};

}  // namespace stoker

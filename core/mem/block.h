#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stop_token>
#include <vector>

#include "base/mutex.h"
#include "mem/budget.h"

namespace stoker {

/// A page-aligned piece of memory for one pack, already faulted in. Read-only once the pack is finished.
class Block {
 public:
  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  friend class BlockPool;
  Block(std::byte* data, std::size_t size) : data_(data), size_(size) {}

  std::byte* data_;
  std::size_t size_;
};

/// Hands out blocks and takes them back for reuse when their last reference dies, on whatever thread that happens: a
/// trainer may hold batches after the loader is gone. Every block in use holds a lease; free blocks are kept only while
/// they fit into what the budget leaves.
class BlockPool : public std::enable_shared_from_this<BlockPool> {
 public:
  explicit BlockPool(std::shared_ptr<MemoryBudget> budget) : budget_(std::move(budget)) {}
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  /// Waits, in plan order, until the budget has room for `n_bytes` rounded up by `rounded`.
  /// @return kBudget if it can never fit; kStopped once `stop` is requested.
  /// Threads: any. Blocks.
  Result<std::shared_ptr<Block>> acquire(std::size_t n_bytes, PlanPosition at, std::stop_token stop);

  /// The size class of a request: at most 1/8 larger, whole pages; few classes, so that blocks fit again.
  static std::size_t rounded(std::size_t n_bytes);

  std::int64_t n_mapped() const { return n_mapped_.load(std::memory_order_relaxed); }  ///< blocks ever mapped

 private:
  std::byte* take_free(std::size_t size) STOKER_EXCLUDES(mu_);
  void put_back(std::byte* data, std::size_t size) STOKER_EXCLUDES(mu_);

  const std::shared_ptr<MemoryBudget> budget_;
  std::atomic<std::int64_t> n_mapped_{0};  // written by acquire

  Mutex mu_;
  std::vector<Block> free_ STOKER_GUARDED_BY(mu_);
  std::size_t free_bytes_ STOKER_GUARDED_BY(mu_) = 0;
};

}  // namespace stoker

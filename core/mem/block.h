#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <vector>

#include "base/mutex.h"
#include "mem/budget.h"
#include "mem/shared_memory.h"

namespace stoker {

/// A page-aligned piece of memory for one pack, already faulted in. Read-only once the pack is finished. Does not own
/// it.
class Block {
 public:
  /// @param id  Of the memory among all that one pool ever mapped. @param fd  To hand it over by; -1: it is private.
  Block(std::byte* data, std::size_t size, std::uint64_t id = 0, int fd = -1)
      : data_(data), size_(size), id_(id), fd_(fd) {}

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::uint64_t id() const { return id_; }
  int fd() const { return fd_; }

 private:
  std::byte* data_;
  std::size_t size_;
  std::uint64_t id_;
  int fd_;
};

/// A finished pack's block over memory that comes from elsewhere, on a line of 64 bytes; `owner` keeps it. Never
/// written to.
std::shared_ptr<const Block> block_over(std::span<const std::byte> memory, std::shared_ptr<const void> owner);

/// Whether other processes can map a pool's blocks.
enum class BlockSharing : std::uint8_t { kPrivate, kShared };

/// Hands out blocks and takes them back for reuse when their last reference dies, on whatever thread that happens: a
/// trainer may hold batches after the loader is gone. Every block in use holds a lease; free blocks are kept only while
/// they fit into what the budget leaves.
class BlockPool : public std::enable_shared_from_this<BlockPool> {
 public:
  using Unmapped = std::function<void(std::uint64_t id)>;

  explicit BlockPool(std::shared_ptr<MemoryBudget> budget, BlockSharing sharing = BlockSharing::kPrivate)
      : budget_(std::move(budget)), sharing_(sharing) {}
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  /// Waits, in plan order, until the budget has room for `n_bytes` rounded up by `rounded`.
  /// @return kBudget if it can never fit; kStopped once `stop` is requested.
  /// Threads: any. Blocks.
  Result<std::shared_ptr<Block>> acquire(std::size_t n_bytes, PlanPosition at, std::stop_token stop);

  /// The size class of a request: at most 1/8 larger, whole pages; few classes, so that blocks fit again.
  static std::size_t rounded(std::size_t n_bytes);

  /// Who is told, on the thread of an acquire(), that a free block's memory was given up: whoever else maps it should
  /// do so too. For shared blocks.
  void on_unmapped(Unmapped told) STOKER_EXCLUDES(mu_);

  /// Gives free memory back now, and from now on each block's when its last reference dies.
  void close() STOKER_EXCLUDES(mu_);

  std::int64_t n_mapped() const { return n_mapped_.load(std::memory_order_relaxed); }  ///< blocks ever mapped

 private:
  struct Mapped {
    Block block;
    SharedMemory shared;  // owns the memory of a shared block
  };
  Result<Mapped> map(std::size_t size);
  static void unmap(Mapped& mapped);
  std::optional<Mapped> take_free(std::size_t size) STOKER_EXCLUDES(mu_);
  void put_back(Mapped mapped) STOKER_EXCLUDES(mu_);

  const std::shared_ptr<MemoryBudget> budget_;
  const BlockSharing sharing_;
  std::atomic<std::int64_t> n_mapped_{0};  // written by acquire

  Mutex mu_;
  Unmapped unmapped_ STOKER_GUARDED_BY(mu_);
  std::vector<Mapped> free_ STOKER_GUARDED_BY(mu_);
  std::size_t free_bytes_ STOKER_GUARDED_BY(mu_) = 0;
  bool is_closed_ STOKER_GUARDED_BY(mu_) = false;
};

}  // namespace stoker

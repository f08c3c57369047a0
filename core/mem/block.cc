#include "mem/block.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <string>
#include <utility>

namespace stoker {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

/// Maps and faults in; nullptr when the system has no memory.
std::byte* map_block(std::size_t size) {
  void* p = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return nullptr;
  auto* data = static_cast<std::byte*>(p);
  if (size >= kHugePage) (void)madvise(p, size, MADV_HUGEPAGE);
#ifdef MADV_POPULATE_WRITE
  if (madvise(p, size, MADV_POPULATE_WRITE) == 0) return data;
#endif
  for (std::size_t i = 0; i < size; i += 4096) data[i] = std::byte{0};
  return data;
}

}  // namespace

std::shared_ptr<const Block> block_over(std::span<const std::byte> memory, std::shared_ptr<const void> owner) {
  struct Kept {
    Block block;
    std::shared_ptr<const void> owner;
  };
  // A Block has no const pointer, a shared_ptr of a const one gives no other out.
  auto* const data = const_cast<std::byte*>(memory.data());
  auto kept = std::make_shared<const Kept>(Kept{Block(data, memory.size()), std::move(owner)});
  const Block* const block = &kept->block;
  return {std::move(kept), block};
}

std::size_t BlockPool::rounded(std::size_t n_bytes) {
  constexpr std::size_t kPage = 4096;
  n_bytes = std::max(n_bytes, kPage);
  const std::size_t step = std::max(std::bit_floor(n_bytes) / 8, kPage);
  return (n_bytes + step - 1) / step * step;
}

Result<std::shared_ptr<Block>> BlockPool::acquire(std::size_t n_bytes, PlanPosition at, std::stop_token stop) {
  const std::size_t size = rounded(n_bytes);
  STOKER_TRY(Lease leased, budget_->acquire(size, at, stop));
  std::optional<Mapped> mapped = take_free(size);
  if (!mapped) {
    STOKER_TRY(mapped, map(size));
  }
  struct Kept {
    Mapped mapped;
    Lease lease;
  };
  auto kept = std::make_shared<Kept>(Kept{std::move(*mapped), std::move(leased)});
  Block* block = &kept->mapped.block;
  return std::shared_ptr<Block>(block, [pool = shared_from_this(), kept = std::move(kept)](Block*) {
    pool->put_back(std::move(kept->mapped));
    kept->lease.release();
  });
}

Result<BlockPool::Mapped> BlockPool::map(std::size_t size) {
  const auto id = static_cast<std::uint64_t>(n_mapped_.fetch_add(1, std::memory_order_relaxed));
  if (sharing_ == BlockSharing::kShared) {
    STOKER_TRY(SharedMemory shared, SharedMemory::make(size));
    const Block block(shared.data(), size, id, shared.fd());
    return Mapped{block, std::move(shared)};
  }
  std::byte* data = map_block(size);
  if (data == nullptr) {
    return Status(Reason::kMemoryLimit,
                  "the system has no " + std::to_string(size) + " bytes left for a pack; lower speed.memory_limit");
  }
  return Mapped{Block(data, size, id), {}};
}

void BlockPool::unmap(Mapped& mapped) {
  if (mapped.shared.data() == nullptr) munmap(mapped.block.data(), mapped.block.size());
}

std::optional<BlockPool::Mapped> BlockPool::take_free(std::size_t size) {
  std::vector<Mapped> dropped;
  std::optional<Mapped> found;
  Unmapped told;
  {
    MutexLock lock(mu_);
    const auto fits =
        std::find_if(free_.begin(), free_.end(), [size](const Mapped& m) { return m.block.size() == size; });
    if (fits != free_.end()) {
      found = std::move(*fits);
      free_bytes_ -= size;
      free_.erase(fits);
    }
    // Oldest first: what was not reused for longest is the least likely size.
    while (!free_.empty() && budget_->in_use_bytes() + free_bytes_ > budget_->limit_bytes()) {
      free_bytes_ -= free_.front().block.size();
      dropped.push_back(std::move(free_.front()));
      free_.erase(free_.begin());
    }
    if (!dropped.empty()) told = unmapped_;
  }
  for (Mapped& mapped : dropped) {
    unmap(mapped);
    if (told) told(mapped.block.id());
  }
  return found;
}

void BlockPool::put_back(Mapped mapped) {
  {
    MutexLock lock(mu_);
    if (!is_closed_) {
      free_bytes_ += mapped.block.size();
      free_.push_back(std::move(mapped));
      return;
    }
  }
  unmap(mapped);
}

void BlockPool::close() {
  std::vector<Mapped> dropped;
  {
    MutexLock lock(mu_);
    is_closed_ = true;
    dropped.swap(free_);
    free_bytes_ = 0;
  }
  for (Mapped& mapped : dropped) unmap(mapped);
}

void BlockPool::on_unmapped(Unmapped told) {
  MutexLock lock(mu_);
  unmapped_ = std::move(told);
}

BlockPool::~BlockPool() { close(); }

}  // namespace stoker

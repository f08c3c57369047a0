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

std::size_t BlockPool::rounded(std::size_t n_bytes) {
  constexpr std::size_t kPage = 4096;
  n_bytes = std::max(n_bytes, kPage);
  const std::size_t step = std::max(std::bit_floor(n_bytes) / 8, kPage);
  return (n_bytes + step - 1) / step * step;
}

Result<std::shared_ptr<Block>> BlockPool::acquire(std::size_t n_bytes, PlanPosition at, std::stop_token stop) {
  const std::size_t size = rounded(n_bytes);
  STOKER_TRY(Lease leased, budget_->acquire(size, at, stop));
  std::byte* data = take_free(size);
  if (data == nullptr) {
    data = map_block(size);
    if (data == nullptr) {
      return Status(Reason::kMemoryLimit,
                    "the system has no " + std::to_string(size) + " bytes left for a pack; lower speed.memory_limit");
    }
    n_mapped_.fetch_add(1, std::memory_order_relaxed);
  }
  auto lease = std::make_shared<Lease>(std::move(leased));
  return std::shared_ptr<Block>(new Block(data, size),
                                [pool = shared_from_this(), lease = std::move(lease)](Block* block) {
                                  pool->put_back(block->data_, block->size_);
                                  lease->release();
                                  delete block;
                                });
}

std::byte* BlockPool::take_free(std::size_t size) {
  std::vector<Block> dropped;
  std::byte* found = nullptr;
  {
    MutexLock lock(mu_);
    const auto fits = std::find_if(free_.begin(), free_.end(), [size](const Block& b) { return b.size_ == size; });
    if (fits != free_.end()) {
      found = fits->data_;
      free_bytes_ -= size;
      free_.erase(fits);
    }
    // Oldest first: what was not reused for longest is the least likely size.
    while (!free_.empty() && budget_->in_use_bytes() + free_bytes_ > budget_->limit_bytes()) {
      free_bytes_ -= free_.front().size_;
      dropped.push_back(free_.front());
      free_.erase(free_.begin());
    }
  }
  for (const Block& b : dropped) munmap(b.data_, b.size_);
  return found;
}

void BlockPool::put_back(std::byte* data, std::size_t size) {
  MutexLock lock(mu_);
  free_.push_back(Block(data, size));
  free_bytes_ += size;
}

BlockPool::~BlockPool() {
  MutexLock lock(mu_);
  for (const Block& b : free_) munmap(b.data_, b.size_);
}

}  // namespace stoker

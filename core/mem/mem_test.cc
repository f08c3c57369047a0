#include <gtest/gtest.h>

#include <cstring>
#include <latch>
#include <thread>
#include <vector>

#include "mem/block.h"
#include "mem/budget.h"

namespace stoker {
namespace {

TEST(MemoryBudget, RefusesWhatCanNeverFit) {
  auto budget = std::make_shared<MemoryBudget>(100);
  EXPECT_EQ(budget->acquire(101, {}, {}).status().reason(), Reason::kBudget);
}

// What is delivered next must not wait behind what comes later, even if the later one is small and fits at once.
TEST(MemoryBudget, GrantsInPlanOrder) {
  auto budget = std::make_shared<MemoryBudget>(100);
  Lease held = budget->acquire(80, {.pack = 0}, {}).value();
  std::vector<std::uint64_t> granted;
  Mutex mu;
  auto take = [&](std::size_t n, std::uint64_t pack) {
    Lease lease = budget->acquire(n, {.pack = pack}, {}).value();
    MutexLock lock(mu);
    granted.push_back(pack);
  };
  std::jthread big([&] { take(100, 1); });
  while (budget->n_waiting() < 1) std::this_thread::yield();
  std::jthread small([&] { take(10, 2); });
  while (budget->n_waiting() < 2) std::this_thread::yield();
  held.release();
  big.join();
  small.join();
  EXPECT_EQ(granted, (std::vector<std::uint64_t>{1, 2}));
  EXPECT_EQ(budget->in_use_bytes(), 0U);
  EXPECT_EQ(budget->peak_bytes(), 100U);
}

TEST(MemoryBudget, StopEndsTheWait) {
  auto budget = std::make_shared<MemoryBudget>(10);
  Lease held = budget->acquire(10, {}, {}).value();
  std::stop_source stop;
  std::jthread waiter([&] { EXPECT_EQ(budget->acquire(1, {}, stop.get_token()).status().code(), Code::kCancelled); });
  while (budget->n_waiting() < 1) std::this_thread::yield();
  stop.request_stop();
}

TEST(Lease, SplitGivesBackEachPartOnItsOwn) {
  auto budget = std::make_shared<MemoryBudget>(100);
  auto [a, b] = budget->acquire(70, {}, {}).value().split(30);
  a.release();
  EXPECT_EQ(budget->in_use_bytes(), 40U);
  b.release();
  EXPECT_EQ(budget->in_use_bytes(), 0U);
}

TEST(BlockPool, ReusesMemoryAndReturnsTheLease) {
  auto budget = std::make_shared<MemoryBudget>(std::size_t{64} << 20);
  auto pool = std::make_shared<BlockPool>(budget);
  Lease extra;
  auto block = pool->acquire(3 << 20, 1000, extra, {}, {}).value();
  std::memset(block->data(), 7, block->size());
  EXPECT_EQ(budget->in_use_bytes(), block->size() + 1000);
  const std::byte* const where = block->data();
  block.reset();
  extra.release();
  EXPECT_EQ(budget->in_use_bytes(), 0U);
  auto again = pool->acquire(3 << 20, 0, extra, {}, {}).value();
  EXPECT_EQ(again->data(), where);
  EXPECT_EQ(pool->n_mapped(), 1);
}

TEST(BlockPool, ABlockOutlivesItsPool) {
  std::shared_ptr<Block> kept;
  {
    auto pool = std::make_shared<BlockPool>(std::make_shared<MemoryBudget>(std::size_t{1} << 20));
    Lease extra;
    kept = pool->acquire(5000, 0, extra, {}, {}).value();
  }
  std::memset(kept->data(), 1, kept->size());
}

TEST(BlockPool, RoundsByAtMostAnEighth) {
  for (std::size_t n = 1; n < (std::size_t{1} << 27); n += n / 3 + 1) {
    EXPECT_GE(BlockPool::rounded(n), n);
    EXPECT_LE(BlockPool::rounded(n), n + n / 8 + 4096) << n;
    EXPECT_EQ(BlockPool::rounded(BlockPool::rounded(n)), BlockPool::rounded(n));
  }
}

}  // namespace
}  // namespace stoker

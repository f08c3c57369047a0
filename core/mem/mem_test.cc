#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <cstring>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "mem/block.h"
#include "mem/budget.h"
#include "mem/shared_memory.h"

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

// Whoever asks first in the plan gets first, on the thread that gives back, and one large wish holds up all behind it.
TEST(MemoryBudget, GrantsLaterInPlanOrder) {
  auto budget = std::make_shared<MemoryBudget>(100);
  std::vector<int> granted;
  std::vector<Lease> held;
  const auto ask = [&](std::size_t n, std::uint64_t pack, int name) {
    budget->acquire_later(n, {.pack = pack}, [&, name](Lease lease) {
      granted.push_back(name);
      held.push_back(std::move(lease));
    });
  };
  ask(60, 5, 0);
  ask(60, 5, 1);
  ask(10, 6, 2);
  ask(50, 4, 3);
  EXPECT_EQ(granted, (std::vector<int>{0}));
  EXPECT_FALSE(budget->try_acquire(1)) << "others wait";
  held[0].release();
  EXPECT_EQ(granted, (std::vector<int>{0, 3})) << "60 do not fit beside 50, and 10 must not pass them";
  held[1].release();
  EXPECT_EQ(granted, (std::vector<int>{0, 3, 1, 2}));
  EXPECT_EQ(budget->in_use_bytes(), 70U);
  EXPECT_TRUE(budget->try_acquire(30));
  EXPECT_FALSE(budget->try_acquire(31));
}

TEST(MemoryBudget, WhatIsLargerThanTheLimitGoesAlone) {
  auto budget = std::make_shared<MemoryBudget>(100);
  Lease small = *budget->try_acquire(1);
  Lease large;
  bool is_after = false;
  budget->acquire_later(1000, {}, [&](Lease lease) { large = std::move(lease); });
  budget->acquire_later(1, {}, [&](Lease) { is_after = true; });
  EXPECT_EQ(large.bytes(), 0U);
  small.release();
  EXPECT_EQ(large.bytes(), 1000U);
  EXPECT_FALSE(is_after);
  large.release();
  EXPECT_TRUE(is_after);
  EXPECT_EQ(budget->in_use_bytes(), 0U);
}

// A callback that gives back at once grants the next: a hundred thousand of them must not stand on one another's stack.
TEST(MemoryBudget, CallbacksDoNotNest) {
  auto budget = std::make_shared<MemoryBudget>(1);
  Lease held = *budget->try_acquire(1);
  int n = 0;
  for (int i = 0; i < 100'000; ++i) budget->acquire_later(1, {}, [&](Lease) { ++n; });
  held.release();
  EXPECT_EQ(n, 100'000);
}

TEST(MemoryBudget, CloseForgetsThoseWhoWait) {
  auto budget = std::make_shared<MemoryBudget>(1);
  Lease held = *budget->try_acquire(1);
  auto owner = std::make_shared<int>(0);
  budget->acquire_later(1, {}, [owner](Lease) { FAIL(); });
  budget->close();
  EXPECT_EQ(owner.use_count(), 1);
  budget->acquire_later(1, {}, [owner](Lease) { FAIL(); });
  held.release();
}

TEST(MemoryBudget, ManyThreadsNeverHoldMoreThanTheLimit) {
  auto budget = std::make_shared<MemoryBudget>(1000);
  std::atomic<int> n_granted{0};
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 8; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < 500; ++i) {
          const auto n = static_cast<std::size_t>(1 + (i * 37 + t * 11) % 400);
          if (i % 3 == 0) {
            auto lease = budget->acquire(n, {.pack = static_cast<std::uint64_t>(i)}, {});
            if (lease.ok()) ++n_granted;
          } else {
            budget->acquire_later(n, {.pack = static_cast<std::uint64_t>(i)}, [&](Lease) { ++n_granted; });
          }
        }
      });
    }
  }
  EXPECT_EQ(n_granted, 8 * 500);
  EXPECT_EQ(budget->in_use_bytes(), 0U);
  EXPECT_LE(budget->peak_bytes(), 1000U);
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
  auto block = pool->acquire(3 << 20, {}, {}).value();
  std::memset(block->data(), 7, block->size());
  EXPECT_EQ(budget->in_use_bytes(), block->size());
  const std::byte* const where = block->data();
  block.reset();
  EXPECT_EQ(budget->in_use_bytes(), 0U);
  auto again = pool->acquire(3 << 20, {}, {}).value();
  EXPECT_EQ(again->data(), where);
  EXPECT_EQ(pool->n_mapped(), 1);
}

// Container runtimes give little; touching a page that is not there would be a SIGBUS.
TEST(SharedMemory, WhatDoesNotFitIsAnErrorWithNumbers) {
  const auto beyond = SharedMemory::make(std::size_t{1} << 50);
  ASSERT_EQ(beyond.status().reason(), Reason::kShmTooSmall);
  EXPECT_NE(beyond.status().message().find("need 1125899906.8 MB, free "), std::string::npos)
      << beyond.status().message();
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 61'000'000;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto limited = SharedMemory::make(600'000'000);  // SIGXFSZ, if it tried
  const auto fits = SharedMemory::make(1'000'000);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  ASSERT_EQ(limited.status().reason(), Reason::kShmTooSmall);
  EXPECT_NE(limited.status().message().find("need 600.0 MB, free 61.0 MB in a memfd"), std::string::npos)
      << limited.status().message();
  EXPECT_TRUE(fits.ok());
}

TEST(BlockPool, ABlockOutlivesItsPool) {
  std::shared_ptr<Block> kept;
  {
    auto pool = std::make_shared<BlockPool>(std::make_shared<MemoryBudget>(std::size_t{1} << 20));
    kept = pool->acquire(5000, {}, {}).value();
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

TEST(BlockOver, KeepsItsOwnerAsLongAsItself) {
  auto owner = std::make_shared<std::vector<std::byte>>(64, std::byte{7});
  std::shared_ptr<const Block> block = block_over(*owner, owner);
  EXPECT_EQ(block->data(), owner->data());
  EXPECT_EQ(block->size(), 64U);
  std::shared_ptr<const Block> other = block;
  block.reset();
  EXPECT_EQ(owner.use_count(), 2);
  other.reset();
  EXPECT_EQ(owner.use_count(), 1);
}

}  // namespace
}  // namespace stoker

#include "mem/buffer_pool.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "base/rng.h"

namespace stoker {
namespace {

TEST(BufferPool, HandsOutTheSameMemoryForAboutTheSameSize) {
  BufferPool pool(1 << 20);
  std::byte* const first = pool.take(100'000);
  pool.give_back(first, 100'000);
  EXPECT_EQ(pool.take(100'500), first);
  std::byte* const second = pool.take(100'000);
  EXPECT_NE(second, first);
  pool.give_back(first, 100'500);
  pool.give_back(second, 100'000);
  std::byte* const larger = pool.take(200'000);
  EXPECT_TRUE(larger != first && larger != second);
  pool.give_back(larger, 200'000);
}

// Whatever was idle before, memory holds all that was asked for, at most an eighth more, and nobody else's.
TEST(BufferPool, EverySizeIsWholeAndItsOwn) {
  BufferPool pool(64 << 20);
  Rng rng(7);
  std::vector<std::pair<std::byte*, std::size_t>> held;
  std::size_t held_bytes = 0;
  for (int n = 0; n < 4000; ++n) {
    if (held.size() > 40 || (!held.empty() && rng.next() % 2 == 0)) {
      const std::size_t i = rng.next() % held.size();
      const auto [data, n_bytes] = held[i];
      ASSERT_EQ(std::to_integer<unsigned>(data[0]), n_bytes % 251);
      ASSERT_EQ(std::to_integer<unsigned>(data[n_bytes - 1]), n_bytes % 251);
      pool.give_back(data, n_bytes);
      held[i] = held.back();
      held.pop_back();
      continue;
    }
    const std::size_t n_bytes = 1 + rng.next() % (std::size_t{1} << (6 + rng.next() % 16));
    std::byte* const data = pool.take(n_bytes);
    std::memset(data, static_cast<int>(n_bytes % 251), n_bytes);
    held.emplace_back(data, n_bytes);
    held_bytes += n_bytes;
  }
  for (const auto& [data, n_bytes] : held) pool.give_back(data, n_bytes);
  EXPECT_LE(pool.idle_bytes(), 64U << 20);
  EXPECT_GT(held_bytes, 0U);
}

TEST(BufferPool, KeepsTheSizesThatAreStillAskedFor) {
  BufferPool pool(1'000'000);
  std::vector<std::byte*> small(8), large(3);
  for (std::byte*& data : small) data = pool.take(100'000);
  for (std::byte* data : small) pool.give_back(data, 100'000);
  EXPECT_LE(pool.idle_bytes(), 1'000'000U);
  for (std::byte*& data : large) data = pool.take(300'000);
  const std::set<std::byte*> were(large.begin(), large.end());
  for (std::byte* data : large) pool.give_back(data, 300'000);
  EXPECT_LE(pool.idle_bytes(), 1'000'000U);
  for (std::byte*& data : large) data = pool.take(300'000);
  EXPECT_EQ(std::set<std::byte*>(large.begin(), large.end()), were) << "the old size kept its place";
  for (std::byte* data : large) pool.give_back(data, 300'000);
}

TEST(BufferPool, KeepsNothingBeyondItsLimit) {
  BufferPool pool(50'000);
  pool.give_back(pool.take(100'000), 100'000);
  EXPECT_EQ(pool.idle_bytes(), 0U);
  pool.give_back(pool.take(BufferPool::kSmallest), BufferPool::kSmallest);  // not this pool's business
  EXPECT_EQ(pool.idle_bytes(), 0U);
  pool.give_back(pool.take(BufferPool::kSmallest + 1), BufferPool::kSmallest + 1);
  EXPECT_EQ(pool.idle_bytes(), BufferPool::kSmallest * 9 / 8);
  std::byte* const huge = pool.take(BufferPool::kLargest);
  pool.give_back(huge, BufferPool::kLargest);
  EXPECT_EQ(pool.idle_bytes(), BufferPool::kSmallest * 9 / 8) << "what does not fit displaced what does";
}

TEST(BufferPool, IsSharedByThreads) {
  BufferPool pool(4 << 20);
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&pool, t] {
      Rng rng(static_cast<std::uint64_t>(t));
      for (int n = 0; n < 2000; ++n) {
        const std::size_t n_bytes = 20'000 + rng.next() % 40'000;
        std::byte* const data = pool.take(n_bytes);
        data[0] = data[n_bytes - 1] = static_cast<std::byte>(t);
        std::this_thread::yield();
        EXPECT_EQ(data[0], static_cast<std::byte>(t));
        EXPECT_EQ(data[n_bytes - 1], static_cast<std::byte>(t));
        pool.give_back(data, n_bytes);
      }
    });
  }
}

}  // namespace
}  // namespace stoker

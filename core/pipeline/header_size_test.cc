#include "pipeline/header_size.h"

#include <gtest/gtest.h>

#include <random>

namespace stoker {
namespace {

std::uint64_t after(HeaderSize& size, int n, std::uint64_t needed, std::uint64_t total) {
  for (int i = 0; i < n; ++i) size.learned(needed, total);
  return size.get();
}

TEST(HeaderSize, FollowsWhatHeadersNeed) {
  HeaderSize size(1);
  EXPECT_EQ(size.get(), HeaderSize::kStart);
  EXPECT_EQ(after(size, 256, 200, 300'000), 512U);
  EXPECT_EQ(after(size, 256, 3500, 300'000), 4096U);
  EXPECT_EQ(after(size, 256, 30'000, 3'000'000), 32768U);
  EXPECT_EQ(after(size, 256, 200, 300'000), 512U) << "and back";
}

TEST(HeaderSize, OneOfManyIsNotReadFor) {
  HeaderSize size(1);
  for (int i = 0; i < 256; ++i) size.learned(i % 10 == 0 ? 60'000 : 200, 300'000);
  EXPECT_EQ(size.get(), 512U);
}

TEST(HeaderSize, SmallObjectsComeWholeWhereTheRankUsesThem) {
  HeaderSize one(1);
  EXPECT_EQ(after(one, 256, 200, 4000), 4096U);
  EXPECT_EQ(after(one, 256, 200, 15'000), 16384U);
  EXPECT_EQ(after(one, 256, 9000, 300'000), 12288U);
  EXPECT_EQ(after(one, 256, 200, 20'000), 512U) << "too large to be kept";
  HeaderSize many(64);
  EXPECT_EQ(after(many, 256, 200, 15'000), 512U) << "63 of 64 would be read in vain";
}

TEST(HeaderSize, CostsNoMoreThanAnyFixedSize) {
  // The cost of every size, computed one by one, of mixed headers: none is below that of the one chosen.
  std::mt19937_64 rng(5);
  for (int trial = 0; trial < 50; ++trial) {
    const std::int32_t dp_size = trial % 3 == 0 ? 8 : 1;
    HeaderSize size(dp_size);
    std::vector<std::pair<std::uint64_t, std::uint64_t>> headers;
    for (int i = 0; i < 256; ++i) {
      const std::uint64_t total = 600 + rng() % (trial % 2 == 0 ? 20'000 : 400'000);
      headers.emplace_back(std::min<std::uint64_t>(total, 100 + rng() % (1U << (8 + rng() % 9))), total);
    }
    for (const auto& [needed, total] : headers) size.learned(needed, total);
    auto cost = [&](std::uint64_t first) {
      double bytes = 0, requests = 0;
      for (const auto& [needed, total] : headers) {
        if (total <= first && total <= HeaderSize::kMostWhole) {  // no body request; read by all, used by one
          bytes += static_cast<double>(total) - static_cast<double>(total) / dp_size;
          continue;
        }
        requests += 1.0 / dp_size + (needed > first ? 1 : 0);
        bytes += static_cast<double>(needed > first ? needed : std::min(first, total));
      }
      return bytes + requests * static_cast<double>(HeaderSize::kRequest);
    };
    for (const std::uint64_t other : HeaderSize::kSizes) EXPECT_LE(cost(size.get()), cost(other) * 1.000001) << other;
  }
}

}  // namespace
}  // namespace stoker

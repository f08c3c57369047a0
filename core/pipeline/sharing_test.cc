#include <gtest/gtest.h>

#include <algorithm>
#include <latch>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "exchange/memory_store_for_test.h"
#include "pipeline/plan_comparison.h"
#include "pipeline/shared_measuring.h"

namespace stoker {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const std::stop_token kNever = {};

/// What anybody measures of a share.
std::string true_value(const MeasureShare& share) {
  return "measured " + std::to_string(share.first) + " " + std::to_string(share.n);
}

class SharingTest : public ::testing::Test {
 protected:
  struct Rank {
    std::unique_ptr<Exchange> exchange;
    std::unique_ptr<SharedMeasuring> sharing;
    std::vector<MeasureShare> measured;          // here
    std::map<std::uint64_t, std::string> taken;  // by first place
  };

  std::unique_ptr<Exchange> exchange(std::int32_t rank, const std::string& space = "run") {
    return std::make_unique<Exchange>(std::make_unique<testing::MemoryStore>(memory_), space,
                                      "rank " + std::to_string(rank), clock_);
  }
  Rank rank(std::int32_t number, std::int32_t n_ranks) {
    Rank out{.exchange = exchange(number), .sharing = nullptr, .measured = {}, .taken = {}};
    out.sharing = std::make_unique<SharedMeasuring>(
        *out.exchange,
        SharingOptions{.rank = number, .n_ranks = n_ranks, .lease = lease_, .look_every = milliseconds(20)}, clock_);
    return out;
  }
  static SharedMeasuring::Measure honest(Rank& rank) {
    return [&rank](std::span<const MeasureShare> shares, const std::stop_token&) -> Result<std::vector<std::string>> {
      std::vector<std::string> values;
      for (const MeasureShare& share : shares) values.push_back(true_value(share));
      rank.measured.insert(rank.measured.end(), shares.begin(), shares.end());
      return values;
    };
  }
  static Status plan(Rank& rank, std::uint64_t window, std::uint64_t n, const SharedMeasuring::Measure& measure,
                     std::stop_token stop = kNever) {
    rank.taken.clear();
    return rank.sharing->window(
        window, n, measure,
        [&rank](const MeasureShare& share, const std::string& value, bool) {
          if (value != true_value(share)) return false;
          EXPECT_TRUE(rank.taken.emplace(share.first, value).second);
          return true;
        },
        std::move(stop));
  }
  static Status plan(Rank& rank, std::uint64_t window, std::uint64_t n) { return plan(rank, window, n, honest(rank)); }
  /// Logged since the last call.
  static std::string lines() {
    std::string out;
    for (const LogLine& line : drain_log()) out += line.text + "\n";
    return out;
  }
  static void expect_whole(const Rank& rank, std::uint64_t n, std::int32_t n_ranks) {
    std::map<std::uint64_t, std::string> all;
    for (const MeasureShare& share : shares_of(n, n_ranks)) all[share.first] = true_value(share);
    EXPECT_EQ(rank.taken, all);
  }

  FakeClock clock_;
  Nanos lease_ = seconds(5);
  std::shared_ptr<testing::SharedMemory> memory_ = std::make_shared<testing::SharedMemory>();
};

TEST(SharesOf, CoverAWindowOnce) {
  for (const std::uint64_t n : {1ull, 7ull, 8ull, 1000ull, 1024ull, 100'000ull}) {
    for (const std::int32_t ranks : {1, 2, 8, 64, 1024}) {
      std::uint64_t next = 0;
      for (const MeasureShare& share : shares_of(n, ranks)) {
        EXPECT_EQ(share.first, next);
        EXPECT_TRUE(share.n >= 1 && share.n <= 256);
        next += share.n;
      }
      EXPECT_EQ(next, n);
    }
  }
  EXPECT_EQ(shares_of(1024, 8).size(), 32u);
}

TEST_F(SharingTest, EachShareIsMeasuredOnce) {
  constexpr int kRanks = 8;
  constexpr std::uint64_t kWindows = 5, kPlaces = 1000;
  std::vector<Rank> ranks;
  for (int r = 0; r < kRanks; ++r) ranks.push_back(rank(r, kRanks));
  {
    std::latch all(kRanks);
    std::vector<std::jthread> threads;
    for (Rank& one : ranks) {
      threads.emplace_back([&] {
        all.arrive_and_wait();
        for (std::uint64_t w = 0; w < kWindows; ++w) {
          EXPECT_TRUE(plan(one, w, kPlaces).ok());
          expect_whole(one, kPlaces, kRanks);
        }
      });
    }
  }
  std::size_t n_measured = 0;
  for (const Rank& one : ranks) n_measured += one.measured.size();
  EXPECT_EQ(n_measured, kWindows * shares_of(kPlaces, kRanks).size());
}

TEST_F(SharingTest, ARankAloneAtAWindowWaitsForNobodyAndTheOthersFindItDone) {
  Rank first = rank(1, 4);
  ASSERT_TRUE(plan(first, 0, 100).ok());
  EXPECT_EQ(first.measured.size(), shares_of(100, 4).size());
  Rank late = rank(3, 4);
  ASSERT_TRUE(plan(late, 0, 100).ok());
  EXPECT_TRUE(late.measured.empty());
  expect_whole(late, 100, 4);
}

TEST_F(SharingTest, TheSharesOfADeadRankAreTakenOverAndThatIsSaid) {
  const auto shares = shares_of(100, 2);
  const auto dead = exchange(0);
  for (std::size_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(
        dead->claim(0, "claim-" + std::to_string(shares[i].first) + "-" + std::to_string(shares[i].n), lease_, kNever)
            ->is_mine);
  }
  memory_->on_wait = [this] { clock_.advance(seconds(1)); };
  Rank alive = rank(1, 2);
  lines();
  ASSERT_TRUE(plan(alive, 0, 100).ok());
  expect_whole(alive, 100, 2);
  EXPECT_EQ(alive.measured.size(), shares.size());
  EXPECT_EQ(alive.sharing->n_taken_over(), 3);
  const std::string said = lines();
  EXPECT_NE(said.find("measured by rank 0: is its storage slow?"), std::string::npos) << said;
  EXPECT_NE(said.find("are measured here too"), std::string::npos) << said;
}

TEST_F(SharingTest, ARankWhoseStorageIsOutIsFreedByTheOthers) {
  lease_ = milliseconds(30);
  Rank stuck = rank(0, 2);
  Rank good = rank(1, 2);
  std::latch is_stuck(1);
  std::jthread waits([&] {
    const Status status = plan(stuck, 0, 64, [&](std::span<const MeasureShare>, const std::stop_token& stop) {
      is_stuck.count_down();
      std::mutex mu;
      std::unique_lock lock(mu);
      std::condition_variable_any never;
      never.wait(lock, stop, [] { return false; });
      return Result<std::vector<std::string>>(Status(Reason::kStopped, "stopped"));
    });
    EXPECT_TRUE(status.ok()) << status.to_string();
  });
  is_stuck.wait();
  clock_.advance(seconds(31));  // it has held its claims as long as one may
  memory_->on_wait = [this] { clock_.advance(milliseconds(10)); };
  ASSERT_TRUE(plan(good, 0, 64).ok());
  waits.join();
  expect_whole(good, 64, 2);
  expect_whole(stuck, 64, 2);
}

TEST_F(SharingTest, WhatEndsMeasuringIsNoValue) {
  Rank one = rank(0, 2);
  const auto fails = [](std::span<const MeasureShare>, const std::stop_token&) {
    return Result<std::vector<std::string>>(Status(Reason::kOutage, "503 for too long"));
  };
  EXPECT_EQ(plan(one, 0, 64, fails).reason(), Reason::kOutage);
  for (const MeasureShare& share : shares_of(64, 2)) {
    const std::string name = "lengths-" + std::to_string(share.first) + "-" + std::to_string(share.n);
    EXPECT_EQ(one.exchange->get(0, name, kNever).value(), std::nullopt);
  }
}

TEST_F(SharingTest, AValueThatCannotBeReadIsMeasuredHere) {
  const auto shares = shares_of(64, 2);
  for (const MeasureShare& share : shares) {
    const std::string name = "lengths-" + std::to_string(share.first) + "-" + std::to_string(share.n);
    ASSERT_TRUE(exchange(0)->put(0, name, "garbage", kNever).ok());
  }
  // One claimed by another: it is met while waiting.
  ASSERT_TRUE(exchange(0)->claim(0, "claim-0-8", lease_, kNever)->is_mine);
  Rank one = rank(1, 2);
  ASSERT_TRUE(plan(one, 0, 64).ok());
  expect_whole(one, 64, 2);
  EXPECT_EQ(one.measured.size(), shares.size());
}

TEST_F(SharingTest, WithoutAnExchangeARankGoesOnAlone) {
  Rank one = rank(0, 2);
  memory_->is_lost = true;
  lines();
  ASSERT_TRUE(plan(one, 0, 64).ok());
  expect_whole(one, 64, 2);
  EXPECT_NE(lines().find("measures for itself"), std::string::npos);
  const int n_calls = memory_->n_calls;
  ASSERT_TRUE(plan(one, 1, 64).ok());
  EXPECT_EQ(memory_->n_calls, n_calls);  // it is not asked again and again
  memory_->is_lost = false;
  clock_.advance(seconds(31));
  ASSERT_TRUE(plan(one, 2, 64).ok());
  EXPECT_GT(memory_->n_calls, n_calls);
  Rank other = rank(1, 2);
  ASSERT_TRUE(plan(other, 2, 64).ok());
  EXPECT_TRUE(other.measured.empty());
}

TEST_F(SharingTest, AWindowThatWasDroppedIsMeasuredAgain) {
  Rank fast = rank(0, 2), slow = rank(1, 2);
  for (std::uint64_t w = 0; w < 8; ++w) ASSERT_TRUE(plan(fast, w, 64).ok());
  ASSERT_TRUE(fast.exchange->drop_before(6, kNever).ok());
  for (std::uint64_t w = 5; w < 8; ++w) {
    ASSERT_TRUE(plan(slow, w, 64).ok());
    expect_whole(slow, 64, 2);
  }
  EXPECT_EQ(slow.measured.size(), shares_of(64, 2).size());
}

TEST_F(SharingTest, StopsWhileItWaits) {
  for (const MeasureShare& share : shares_of(64, 2)) {
    const std::string name = "claim-" + std::to_string(share.first) + "-" + std::to_string(share.n);
    ASSERT_TRUE(exchange(0)->claim(0, name, lease_, kNever)->is_mine);
  }
  Rank one = rank(1, 2);
  std::stop_source stop;
  std::jthread waits([&] { EXPECT_EQ(plan(one, 0, 64, honest(one), stop.get_token()).code(), Code::kCancelled); });
  stop.request_stop();
}

// --- comparing

RunFacts facts() {
  return {.fingerprint = "data=1 seed=2 pack=3", .dp_size = 4, .packs_per_step = 8, .step = 10, .window = 2};
}

TEST_F(SharingTest, AWindowPlannedDifferentlyStopsEveryRank) {
  const std::string space = facts().space("");
  const auto a = exchange(0, space), b = exchange(1, space), c = exchange(2, space);
  PlanComparison one(*a, "", facts(), 0), two(*b, "", facts(), 1), three(*c, "", facts(), 2);
  EXPECT_TRUE(one.check(3, "aa", kNever).ok());
  EXPECT_TRUE(two.check(3, "aa", kNever).ok());
  EXPECT_TRUE(one.check(4, "aa", kNever).ok());
  const Status status = two.check(4, "bb", kNever);
  EXPECT_EQ(status.reason(), Reason::kPlanMismatch);
  EXPECT_NE(status.message().find("window 4 was planned as bb by one rank and as aa"), std::string::npos);
  EXPECT_EQ(one.check(5, "aa", kNever).message(), status.message());
  EXPECT_EQ(three.check(3, "aa", kNever).message(), status.message());
  auto other_run = facts();
  other_run.fingerprint = "data=2";
  const auto d = exchange(0, other_run.space(""));
  EXPECT_TRUE(PlanComparison(*d, "", other_run, 0).check(4, "cc", kNever).ok());
}

TEST_F(SharingTest, RanksThatRunSomethingElseAreToldWhat) {
  const auto compare = [this](const RunFacts& rank_0, const RunFacts& rank_1, bool is_rank_0_first) {
    memory_ = std::make_shared<testing::SharedMemory>();
    memory_->on_wait = [] {};
    const std::string job = "job";
    const auto a = exchange(0, rank_0.space(job)), b = exchange(1, rank_1.space(job));
    PlanComparison zero(*a, job, rank_0, 0), one(*b, job, rank_1, 1);
    if (is_rank_0_first) {
      EXPECT_TRUE(zero.meet(kNever).ok());
    }
    Status status = one.meet(kNever);
    if (!is_rank_0_first) {
      EXPECT_TRUE(status.ok());
      EXPECT_TRUE(zero.meet(kNever).ok());
      status = one.check(3, "digest", kNever);
    }
    // Rank 0 is told too.
    const Status its = zero.check(3, "digest", kNever);
    EXPECT_EQ(its.message(), status.message());
    return status;
  };
  RunFacts data = facts(), both = facts(), size = facts(), step = facts();
  data.fingerprint = "data=9 seed=2 pack=3";
  both.fingerprint = "data=1 seed=3 pack=4";
  size.dp_size = 8;
  step.step = 12;
  for (const bool is_first : {true, false}) {
    const Status manifest = compare(facts(), data, is_first);
    EXPECT_EQ(manifest.reason(), Reason::kPlanMismatch);
    EXPECT_NE(manifest.message().find("`data` of one rank is not as at rank 0: the manifests"), std::string::npos);
    EXPECT_NE(compare(facts(), both, is_first).message().find("`pack`, `seed` of one rank are not"), std::string::npos);
    EXPECT_NE(compare(facts(), size, is_first).message().find("dp_size is 8 at one rank and 4"), std::string::npos);
    EXPECT_NE(compare(facts(), step, is_first).message().find("begins at step 12 and rank 0 at step 10"),
              std::string::npos);
  }
}

TEST_F(SharingTest, AJobMayHaveSeveralLoaders) {
  memory_->on_wait = [] {};
  RunFacts eval = facts();
  eval.fingerprint = "data=5";
  const auto a = exchange(0, facts().space("job")), b = exchange(0, eval.space("job"));
  const auto c = exchange(1, facts().space("job")), d = exchange(1, eval.space("job"));
  PlanComparison zero_trains(*a, "job", facts(), 0), zero_evaluates(*b, "job", eval, 0);
  PlanComparison one_trains(*c, "job", facts(), 1), one_evaluates(*d, "job", eval, 1);
  EXPECT_TRUE(zero_trains.meet(kNever).ok());
  EXPECT_TRUE(one_trains.meet(kNever).ok());
  EXPECT_TRUE(one_evaluates.meet(kNever).ok());  // before rank 0 does
  EXPECT_TRUE(one_evaluates.check(0, "x", kNever).ok());
  EXPECT_TRUE(zero_evaluates.meet(kNever).ok());
  EXPECT_TRUE(zero_evaluates.check(0, "x", kNever).ok());
  EXPECT_TRUE(one_evaluates.check(1, "y", kNever).ok());
  EXPECT_TRUE(zero_evaluates.check(1, "y", kNever).ok());
}

}  // namespace
}  // namespace stoker

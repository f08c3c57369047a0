#include "source/job_queue.h"

#include <gtest/gtest.h>

namespace stoker {
namespace {

using namespace std::chrono_literals;

std::unique_ptr<Job> job(std::uint64_t priority, std::uint64_t sequence = 0) {
  auto made = std::make_unique<Job>();
  made->request.priority = priority;
  made->sequence = sequence;
  return made;
}

struct Queue : ::testing::Test {
  JobQueue queue{4};
  std::vector<int> n_wakes = std::vector<int>(2, 0);
  Nanos look_again{0};
  void SetUp() override {
    for (int i = 0; i < 2; ++i) queue.add_worker([this, i] { ++n_wakes[static_cast<std::size_t>(i)]; });
  }
};

TEST_F(Queue, GivesInPlanOrderThenInOrderOfSubmission) {
  queue.set_limit(1000);
  std::uint64_t sequence = 0;
  for (const int p : {5, 3, 3, 9, 1, 3}) queue.push(job(static_cast<std::uint64_t>(p), sequence++));
  std::vector<std::pair<std::uint64_t, std::uint64_t>> order;
  while (auto next = queue.take(0, 0ns, look_again)) order.emplace_back(next->request.priority, next->sequence);
  EXPECT_EQ(order,
            (std::vector<std::pair<std::uint64_t, std::uint64_t>>{{1, 4}, {3, 1}, {3, 2}, {3, 5}, {5, 0}, {9, 3}}));
}

TEST_F(Queue, KeepsTheLimitAndSharesItEvenly) {
  for (std::uint64_t i = 0; i < 10; ++i) queue.push(job(i));
  EXPECT_TRUE(queue.take(0, 0ns, look_again));
  EXPECT_TRUE(queue.take(0, 0ns, look_again));
  EXPECT_FALSE(queue.take(0, 0ns, look_again)) << "more than its share";
  EXPECT_TRUE(queue.take(1, 0ns, look_again));
  EXPECT_TRUE(queue.take(1, 0ns, look_again));
  EXPECT_FALSE(queue.take(1, 0ns, look_again));
  EXPECT_EQ(queue.counts().n_in_flight, 4);
  queue.release(1, 0);
  EXPECT_FALSE(queue.take(0, 0ns, look_again));
  EXPECT_TRUE(queue.take(1, 0ns, look_again));
}

TEST_F(Queue, WakesAnIdleWorkerForWorkAndOnlyThen) {
  EXPECT_FALSE(queue.take(0, 0ns, look_again));
  EXPECT_FALSE(queue.take(1, 0ns, look_again));
  queue.push(job(1));
  EXPECT_EQ(n_wakes[0] + n_wakes[1], 1);
  // The first that wakes takes what it may; what it leaves wakes the other.
  for (std::uint64_t i = 0; i < 5; ++i) queue.push(job(i));
  const int awake = n_wakes[0] ? 0 : 1;
  n_wakes = {0, 0};
  EXPECT_FALSE(queue.counts().n_in_flight);
  while (queue.take(awake, 0ns, look_again)) {
  }
  EXPECT_EQ(queue.counts().n_in_flight, 2);
}

TEST_F(Queue, ARetryWaitsForItsTimeAndKeepsItsPlace) {
  queue.push_later(job(1), 100ms);
  queue.push(job(2));
  EXPECT_EQ(queue.take(0, 0ns, look_again)->request.priority, 2U);
  EXPECT_FALSE(queue.take(0, 99ms, look_again));
  EXPECT_EQ(look_again, Nanos(100ms));
  queue.push(job(3));
  EXPECT_EQ(queue.take(0, 100ms, look_again)->request.priority, 1U);
  EXPECT_EQ(queue.counts().n_retrying, 0);
}

TEST_F(Queue, APrefixAtItsLimitHoldsUpNobodyElse) {
  queue.set_limit(100);
  queue.set_prefix_limit(1, 2);
  for (std::uint64_t i = 0; i < 8; ++i) {
    auto made = job(i, i);
    made->prefix = i < 5 ? 1 : 0;  // the first five want the same
    queue.push(std::move(made));
  }
  std::vector<std::uint64_t> order;
  while (auto next = queue.take(0, 0ns, look_again)) order.push_back(next->sequence);
  EXPECT_EQ(order, (std::vector<std::uint64_t>{0, 1, 5, 6, 7}));
  const JobQueue::Released was = queue.release(0, 1);
  EXPECT_EQ(was.n_in_prefix, 2);
  EXPECT_FALSE(was.is_binding) << "not the limit over all";
  EXPECT_EQ(queue.take(0, 0ns, look_again)->sequence, 2U);
  EXPECT_FALSE(queue.take(1, 0ns, look_again));
  n_wakes = {0, 0};
  queue.set_prefix_limit(1, 3);
  EXPECT_EQ(n_wakes[0] + n_wakes[1], 1) << "there is work now";
  EXPECT_EQ(queue.take(1, 0ns, look_again)->sequence, 3U);
}

TEST_F(Queue, SaysWhetherTheLimitHoldsSomethingBack) {
  for (std::uint64_t i = 0; i < 5; ++i) queue.push(job(i));
  for (const int worker : {0, 0, 1, 1}) ASSERT_TRUE(queue.take(worker, 0ns, look_again));
  EXPECT_TRUE(queue.release(0, 0).is_binding);
  ASSERT_TRUE(queue.take(0, 0ns, look_again));
  EXPECT_FALSE(queue.release(0, 0).is_binding) << "nothing waits";
}

TEST_F(Queue, ClosedItGivesEverythingBack) {
  queue.push(job(1));
  queue.push_later(job(2), 1s);
  EXPECT_EQ(queue.close().size(), 2U);
  EXPECT_TRUE(queue.push(job(3)));
  EXPECT_TRUE(queue.push_later(job(4), 1s));
  EXPECT_FALSE(queue.take(0, 5s, look_again));
}

TEST_F(Queue, AGrownLimitWakesWhoSleeps) {
  for (std::uint64_t i = 0; i < 10; ++i) queue.push(job(i));
  for (const int worker : {0, 1}) {
    while (queue.take(worker, 0ns, look_again)) {
    }
  }
  n_wakes = {0, 0};
  queue.set_limit(2);
  EXPECT_EQ(n_wakes, (std::vector<int>{0, 0}));
  queue.set_limit(8);
  EXPECT_EQ(n_wakes, (std::vector<int>{1, 1}));
}

}  // namespace
}  // namespace stoker

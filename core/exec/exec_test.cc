#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <thread>
#include <vector>

#include "exec/bounded_queue.h"
#include "exec/cpu.h"
#include "exec/worker_pool.h"

namespace stoker {
namespace {

TEST(Cpu, ReadsQuotas) {
  EXPECT_DOUBLE_EQ(cpus_in_cgroup_v2("150000 100000"), 1.5);
  EXPECT_DOUBLE_EQ(cpus_in_cgroup_v2("max 100000"), 0);
  EXPECT_DOUBLE_EQ(cpus_in_cgroup_v2(""), 0);
  EXPECT_GE(usable_cpus(), 1);
}

TEST(BoundedQueue, KeepsOrderAndBound) {
  BoundedQueue<int> queue(2, Clock::real());
  std::stop_source stop;
  std::jthread producer([&] {
    for (int i = 0; i < 100; ++i) ASSERT_TRUE(queue.push(i, stop.get_token()));
  });
  for (int i = 0; i < 100; ++i) {
    EXPECT_LE(queue.size(), 2U);
    EXPECT_EQ(queue.pop(stop.get_token()), i);
  }
}

TEST(BoundedQueue, StopEndsBothWaits) {
  BoundedQueue<int> full(1, Clock::real());
  BoundedQueue<int> empty(1, Clock::real());
  std::stop_source stop;
  ASSERT_TRUE(full.push(1, stop.get_token()));
  std::latch waiting(2);
  std::jthread a([&] {
    waiting.count_down();
    EXPECT_FALSE(full.push(2, stop.get_token()));
  });
  std::jthread b([&] {
    waiting.count_down();
    EXPECT_FALSE(empty.pop(stop.get_token()).has_value());
  });
  waiting.wait();
  stop.request_stop();
}

TEST(WorkerPool, RunsTheMostUrgentFirst) {
  WorkerPool pool(1, "test", Clock::real());
  std::latch gate(1);
  std::latch done(4);
  std::vector<int> order;  // one worker: no race
  pool.submit(0, [&](int) {
    gate.wait();
    done.count_down();
  });
  for (const int priority : {3, 1, 2}) {
    pool.submit(static_cast<std::uint64_t>(priority), [&, priority](int) {
      order.push_back(priority);
      done.count_down();
    });
  }
  gate.count_down();
  done.wait();
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
}

TEST(WorkerPool, StopDropsWhatHasNotRun) {
  auto alive = std::make_shared<int>(0);
  std::latch running(1);
  std::latch gate(1);
  std::atomic<int> n_ran{0};
  {
    WorkerPool pool(1, "test", Clock::real());
    pool.submit(0, [&](int) {
      running.count_down();
      gate.wait();
      ++n_ran;
    });
    running.wait();
    for (int i = 0; i < 50; ++i) pool.submit(1, [&n_ran, alive](int) { ++n_ran; });
    std::jthread stopper([&] { pool.stop(); });
    while (alive.use_count() > 1) std::this_thread::yield();  // the queue is emptied before the running task ends
    gate.count_down();
  }
  EXPECT_EQ(n_ran, 1);
}

}  // namespace
}  // namespace stoker

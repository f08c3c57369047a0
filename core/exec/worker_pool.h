#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "metric/metric.h"

namespace stoker {

/// A fixed set of background threads that run the task of the smallest priority first.
///
/// The queue has no bound of its own because tasks are submitted from threads that must not block (fetch callbacks).
/// Its users bound it: every task belongs to a pack that memory was leased for, or to the one window that is being
/// measured.
class WorkerPool {
 public:
  /// Runs on a worker; `worker` in [0, n_threads) selects per-thread state such as a decoder's scratch. Must not throw.
  using Task = std::function<void(int worker)>;

  WorkerPool(int n_threads, const std::string& name, const Clock& clock);
  ~WorkerPool() { stop(); }
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  /// Takes a task; after stop() it is destroyed without having run. Threads: any. Does not block.
  void submit(std::uint64_t priority, Task task) STOKER_EXCLUDES(mu_);
  /// Ends after the tasks that are running now; the rest is destroyed unrun. Repeatable. Never call it from a worker.
  void stop() STOKER_EXCLUDES(mu_);

  int n_threads() const { return n_threads_; }
  const StageClock& clock() const { return stage_; }
  std::int64_t occupancy_integral() const { return occupancy_.integral(); }

 private:
  struct Entry {
    std::uint64_t priority;
    std::uint64_t ticket;  // first come, first served among equals
    Task task;
  };
  static bool later(const Entry& a, const Entry& b) {
    return a.priority != b.priority ? a.priority > b.priority : a.ticket > b.ticket;
  }
  void run(int worker, const std::string& name);

  const int n_threads_;
  const Clock& clock_;
  StageClock stage_;
  Occupancy occupancy_;

  Mutex mu_;
  std::condition_variable_any arrived_;
  bool stopping_ STOKER_GUARDED_BY(mu_) = false;
  std::uint64_t next_ticket_ STOKER_GUARDED_BY(mu_) = 0;
  std::vector<Entry> heap_ STOKER_GUARDED_BY(mu_);

  std::vector<std::jthread> threads_;  // last: joined before the rest goes
};

}  // namespace stoker

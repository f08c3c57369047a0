#include "exec/worker_pool.h"

#include <algorithm>
#include <utility>

#include "exec/cpu.h"

namespace stoker {

WorkerPool::WorkerPool(int n_threads, const std::string& name, const Clock& clock)
    : n_threads_(std::max(n_threads, 1)), clock_(clock) {
  threads_.reserve(static_cast<std::size_t>(n_threads_));
  for (int i = 0; i < n_threads_; ++i) threads_.emplace_back([this, i, name] { run(i, name); });
}

void WorkerPool::submit(std::uint64_t priority, Task task) {
  MutexLock lock(mu_);
  if (stopping_) return;
  heap_.push_back({priority, next_ticket_++, std::move(task)});
  std::push_heap(heap_.begin(), heap_.end(), later);
  occupancy_.changed(static_cast<std::int64_t>(heap_.size()), clock_.now());
  arrived_.notify_one();
}

void WorkerPool::stop() {
  std::vector<Entry> unrun;  // destroyed outside the lock: a task may own what calls back
  {
    MutexLock lock(mu_);
    stopping_ = true;
    unrun.swap(heap_);
    arrived_.notify_all();
  }
  unrun.clear();
  for (std::jthread& t : threads_) {
    if (t.joinable()) t.join();
  }
}

void WorkerPool::run(int worker, const std::string& name) {
  become_background_thread(name + "/" + std::to_string(worker));
  for (;;) {
    Task task;
    {
      const Timed idle(stage_.wait_in_ns, clock_);
      MutexLock lock(mu_);
      arrived_.wait(lock, [this]() STOKER_NO_ANALYSIS { return stopping_ || !heap_.empty(); });
      if (stopping_) return;
      std::pop_heap(heap_.begin(), heap_.end(), later);
      task = std::move(heap_.back().task);
      heap_.pop_back();
      occupancy_.changed(static_cast<std::int64_t>(heap_.size()), clock_.now());
    }
    const Timed busy(stage_.busy_ns, clock_);
    task(worker);
    stage_.items.add(1);
  }
}

}  // namespace stoker

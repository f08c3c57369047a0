#include "source/job_queue.h"

#include <algorithm>
#include <utility>

namespace stoker {

int JobQueue::add_worker(std::function<void()> wake) {
  MutexLock lock(mu_);
  workers_.push_back({std::move(wake)});
  return static_cast<int>(workers_.size()) - 1;
}

int JobQueue::share_of_one() const {
  const int n = std::max(1, static_cast<int>(workers_.size()));
  return (limit_ + n - 1) / n;
}

// Wakes one sleeper with room if there is work to start: the least loaded, so that connections spread evenly over the
// loops. One is enough: a worker that leaves work behind wakes the next.
void JobQueue::wake_for_work() {
  if (!waiting_.empty() && n_in_flight_ < limit_) wake_one();
}

void JobQueue::wake_one() {
  Worker* best = nullptr;
  for (Worker& worker : workers_) {
    if (!worker.is_asleep || worker.n_in_flight >= share_of_one()) continue;
    if (!best || worker.n_in_flight < best->n_in_flight) best = &worker;
  }
  if (!best) return;
  best->is_asleep = false;
  best->wake();
}

void JobQueue::promote_due(Nanos now) {
  while (!later_.empty() && later_.front().due <= now) {
    std::pop_heap(later_.begin(), later_.end());
    waiting_.push_back({std::move(later_.back().job)});
    later_.pop_back();
    std::push_heap(waiting_.begin(), waiting_.end());
  }
}

std::unique_ptr<Job> JobQueue::push(std::unique_ptr<Job> job) {
  MutexLock lock(mu_);
  if (is_closed_) return job;
  waiting_.push_back({std::move(job)});
  std::push_heap(waiting_.begin(), waiting_.end());
  wake_for_work();
  return nullptr;
}

std::unique_ptr<Job> JobQueue::push_later(std::unique_ptr<Job> job, Nanos not_before) {
  MutexLock lock(mu_);
  if (is_closed_) return job;
  later_.push_back({not_before, std::move(job)});
  std::push_heap(later_.begin(), later_.end());
  wake_one();  // somebody with room must know when it is due
  return nullptr;
}

std::unique_ptr<Job> JobQueue::take(int worker, Nanos now, Nanos& look_again) {
  look_again = Nanos::max();
  MutexLock lock(mu_);
  if (is_closed_) return nullptr;
  promote_due(now);
  Worker& me = workers_[static_cast<std::size_t>(worker)];
  const bool has_room = n_in_flight_ < limit_ && me.n_in_flight < share_of_one();
  if (!has_room || waiting_.empty()) {
    me.is_asleep = true;
    if (has_room && !later_.empty()) look_again = later_.front().due;
    wake_for_work();  // what I have no room for, another may have
    return nullptr;
  }
  std::pop_heap(waiting_.begin(), waiting_.end());
  std::unique_ptr<Job> job = std::move(waiting_.back().job);
  waiting_.pop_back();
  me.is_asleep = false;
  ++me.n_in_flight;
  ++n_in_flight_;
  return job;
}

void JobQueue::release(int worker) {
  MutexLock lock(mu_);
  --workers_[static_cast<std::size_t>(worker)].n_in_flight;
  --n_in_flight_;
}

void JobQueue::set_limit(int limit) {
  MutexLock lock(mu_);
  if (limit_ == limit) return;
  const bool grew = limit > limit_;
  limit_ = limit;
  if (!grew) return;
  for (Worker& worker : workers_) {  // all: a retry that becomes due later must be seen by one that has room now
    if (!worker.is_asleep) continue;
    worker.is_asleep = false;
    worker.wake();
  }
}

std::vector<std::unique_ptr<Job>> JobQueue::close() {
  std::vector<std::unique_ptr<Job>> left;
  MutexLock lock(mu_);
  is_closed_ = true;
  for (Waiting& entry : waiting_) left.push_back(std::move(entry.job));
  for (Later& entry : later_) left.push_back(std::move(entry.job));
  waiting_.clear();
  later_.clear();
  for (Worker& worker : workers_) worker.wake();
  return left;
}

JobQueue::Counts JobQueue::counts() const {
  MutexLock lock(mu_);
  return {static_cast<int>(waiting_.size()), static_cast<int>(later_.size()), n_in_flight_, limit_};
}

}  // namespace stoker

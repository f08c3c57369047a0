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
  if (n_in_flight_ < limit_ && next_group()) wake_one();
}

JobQueue::Group& JobQueue::group_of(int prefix) {
  const auto at = static_cast<std::size_t>(prefix);
  if (groups_.size() <= at) groups_.resize(at + 1);
  return groups_[at];
}

// The one whose first job stands first in the plan, of those that may start one. They are few.
JobQueue::Group* JobQueue::next_group() {
  Group* best = nullptr;
  for (Group& group : groups_) {
    if (group.can_start() && (!best || best->waiting.front() < group.waiting.front())) best = &group;
  }
  return best;
}

void JobQueue::add_waiting(std::unique_ptr<Job> job) {
  std::vector<Waiting>& waiting = group_of(job->prefix).waiting;
  waiting.push_back({std::move(job)});
  std::push_heap(waiting.begin(), waiting.end());
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
    add_waiting(std::move(later_.back().job));
    later_.pop_back();
  }
}

std::unique_ptr<Job> JobQueue::push(std::unique_ptr<Job> job) {
  MutexLock lock(mu_);
  if (is_closed_) return job;
  add_waiting(std::move(job));
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
  Group* group = has_room ? next_group() : nullptr;
  if (!group) {
    me.is_asleep = true;
    if (has_room && !later_.empty()) look_again = later_.front().due;
    wake_for_work();  // what I have no room for, another may have
    return nullptr;
  }
  std::pop_heap(group->waiting.begin(), group->waiting.end());
  std::unique_ptr<Job> job = std::move(group->waiting.back().job);
  group->waiting.pop_back();
  me.is_asleep = false;
  ++group->n_in_flight;
  ++me.n_in_flight;
  ++n_in_flight_;
  return job;
}

JobQueue::Released JobQueue::release(int worker, int prefix) {
  MutexLock lock(mu_);
  const bool is_binding = next_group() != nullptr;
  --workers_[static_cast<std::size_t>(worker)].n_in_flight;
  --n_in_flight_;
  return {.n_in_prefix = group_of(prefix).n_in_flight--, .is_binding = is_binding};
}

void JobQueue::set_limit(int limit) {
  MutexLock lock(mu_);
  if (limit_ == limit) return;
  const bool grew = limit > limit_;
  limit_ = limit;
  if (grew) wake_all();  // all: a retry that becomes due later must be seen by one that has room now
}

void JobQueue::set_prefix_limit(int prefix, int limit) {
  MutexLock lock(mu_);
  Group& group = group_of(prefix);
  const bool grew = limit > group.limit;
  group.limit = limit;
  if (grew && group.can_start()) wake_for_work();
}

void JobQueue::wake_all() {
  for (Worker& worker : workers_) {
    if (!worker.is_asleep) continue;
    worker.is_asleep = false;
    worker.wake();
  }
}

std::vector<std::unique_ptr<Job>> JobQueue::close() {
  std::vector<std::unique_ptr<Job>> left;
  MutexLock lock(mu_);
  is_closed_ = true;
  for (Group& group : groups_) {
    for (Waiting& entry : group.waiting) left.push_back(std::move(entry.job));
    group.waiting.clear();
  }
  for (Later& entry : later_) left.push_back(std::move(entry.job));
  later_.clear();
  for (Worker& worker : workers_) worker.wake();
  return left;
}

JobQueue::Counts JobQueue::counts() const {
  MutexLock lock(mu_);
  std::size_t n_waiting = 0;
  std::int64_t of_groups = groups_.empty() ? limit_ : 0;
  for (const Group& group : groups_) {
    n_waiting += group.waiting.size();
    of_groups += group.limit;
  }
  return {static_cast<int>(n_waiting), static_cast<int>(later_.size()), n_in_flight_,
          static_cast<int>(std::min<std::int64_t>(limit_, of_groups))};
}

}  // namespace stoker

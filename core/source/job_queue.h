#pragma once

#include <climits>
#include <cstdint>
#include <functional>
#include <memory>
#include <tuple>
#include <vector>

#include "base/mutex.h"
#include "source/job.h"

namespace stoker {

/// Jobs that have not started, in plan order; jobs that wait for their next try; and the limits of how many are in
/// flight: over all workers, and of one prefix (`Job::prefix`). A prefix at its limit holds up nobody else. A worker is
/// a thread that carries several jobs at a time (an event loop) or one. Threads: any. Nothing here blocks: a worker
/// without work sleeps elsewhere and is woken through its own `wake`.
class JobQueue {
 public:
  explicit JobQueue(int limit) : limit_(limit) {}

  /// Before the first take. `wake` must be cheap and callable from any thread; it is called under the queue's lock and
  /// calls nothing back.
  int add_worker(std::function<void()> wake) STOKER_EXCLUDES(mu_);

  /// Hands the job back if the queue is closed.
  std::unique_ptr<Job> push(std::unique_ptr<Job> job) STOKER_EXCLUDES(mu_);
  /// The same for a job that may not start before `not_before`.
  std::unique_ptr<Job> push_later(std::unique_ptr<Job> job, Nanos not_before) STOKER_EXCLUDES(mu_);

  /// See JobOwner::take. A worker gets at most its even share of the limit.
  std::unique_ptr<Job> take(int worker, Nanos now, Nanos& look_again) STOKER_EXCLUDES(mu_);
  struct Released {
    int n_in_prefix = 0;      ///< in flight there until now
    bool is_binding = false;  ///< another job waits for nothing but its place under the limit over all
  };
  Released release(int worker, int prefix) STOKER_EXCLUDES(mu_);

  void set_limit(int limit) STOKER_EXCLUDES(mu_);
  void set_prefix_limit(int prefix, int limit) STOKER_EXCLUDES(mu_);
  /// From now on nothing is taken or accepted; returns what waited, and wakes every worker.
  std::vector<std::unique_ptr<Job>> close() STOKER_EXCLUDES(mu_);

  struct Counts {
    int n_waiting = 0;
    int n_retrying = 0;
    int n_in_flight = 0;
    int limit = 0;  ///< in flight, over all; less where every prefix has a lower one
  };
  Counts counts() const STOKER_EXCLUDES(mu_);

 private:
  struct Worker {
    std::function<void()> wake;
    int n_in_flight = 0;
    bool is_asleep = false;
  };
  struct Waiting {
    std::unique_ptr<Job> job;
    bool operator<(const Waiting& other) const {  // std heaps keep the largest in front
      return std::tie(other.job->request.priority, other.job->sequence) <
             std::tie(job->request.priority, job->sequence);
    }
  };
  struct Later {
    Nanos due;
    std::unique_ptr<Job> job;
    bool operator<(const Later& other) const { return other.due < due; }
  };

  // Of one prefix.
  struct Group {
    std::vector<Waiting> waiting;  // heap
    int n_in_flight = 0;
    int limit = INT_MAX;
    bool can_start() const { return !waiting.empty() && n_in_flight < limit; }
  };

  int share_of_one() const STOKER_REQUIRES(mu_);
  void add_waiting(std::unique_ptr<Job> job) STOKER_REQUIRES(mu_);
  Group& group_of(int prefix) STOKER_REQUIRES(mu_);
  Group* next_group() STOKER_REQUIRES(mu_);
  void wake_all() STOKER_REQUIRES(mu_);
  void wake_for_work() STOKER_REQUIRES(mu_);
  void wake_one() STOKER_REQUIRES(mu_);
  void promote_due(Nanos now) STOKER_REQUIRES(mu_);

  mutable Mutex mu_;
  std::vector<Worker> workers_ STOKER_GUARDED_BY(mu_);
  std::vector<Group> groups_ STOKER_GUARDED_BY(mu_);  // by prefix
  std::vector<Later> later_ STOKER_GUARDED_BY(mu_);   // heap
  int n_in_flight_ STOKER_GUARDED_BY(mu_) = 0;
  int limit_ STOKER_GUARDED_BY(mu_);
  bool is_closed_ STOKER_GUARDED_BY(mu_) = false;
};

}  // namespace stoker

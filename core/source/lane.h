#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/mutex.h"
#include "metric/metric.h"
#include "source/hedge.h"
#include "source/job.h"
#include "source/job_queue.h"
#include "source/limit.h"
#include "source/prefixes.h"
#include "source/retry.h"

namespace stoker {

struct FetchCounters {
  Counter n_submitted, n_succeeded, n_failed, n_shared, n_retries, n_hedges, n_hedges_won, n_throttled, n_bytes,
      n_wire_bytes, busy_ns;
  std::array<Counter, kNumReasons> failed_tries;
};

/// Requests that share limits and a fate: all of the network, or all of what is local. Decides when each may start,
/// what becomes of a try that failed, and who is asked a second time. Threads: any.
class Lane final : public JobOwner {
 public:
  /// Ends a job, exactly once for all its tries.
  using Answer = std::function<void(std::unique_ptr<Job>, Result<FetchedObject>)>;

  /// Borrows everything. @param start  requests in flight at first; grows up to `maximum`.
  Lane(const FetchSettings& settings, int start, int maximum, std::uint64_t jitter_seed, const Clock& clock,
       FetchCounters& counters, Answer answer);

  /// A new job, or one that need not wait. Answers it with STOPPED if the lane is closed.
  void push(std::unique_ptr<Job> job);
  std::unique_ptr<Job> take(int worker, Nanos now, Nanos& look_again) override {
    return queue.take(worker, now, look_again);
  }
  void settle(int worker, std::unique_ptr<Job> job, Outcome outcome) override;
  Nanos hedge_delay() const override { return Nanos(hedge_delay_ns_.load(std::memory_order_relaxed)); }
  void hedge(Job& job) override STOKER_EXCLUDES(mu_);
  /// Just so many, from now on.
  void set_limit(int limit) STOKER_EXCLUDES(mu_);
  void close();

  JobQueue queue;

 private:
  /// @return the number of the job's prefix
  int prefix_of(const Job& job) STOKER_EXCLUDES(mu_);
  void note_latency(Nanos first_byte) STOKER_REQUIRES(mu_);
  void note_success(const Job& job, const Outcome& outcome, const JobQueue::Released& was) STOKER_EXCLUDES(mu_);
  void note_throttled(const Job& job, const JobQueue::Released& was) STOKER_EXCLUDES(mu_);
  bool note_failure(const Job& job, const Outcome& outcome) STOKER_EXCLUDES(mu_);  // true: something was read before
  void retry_or_fail(std::unique_ptr<Job> job, Outcome outcome);
  void push_later(std::unique_ptr<Job> job, Nanos due);

  const FetchSettings& settings_;
  const std::uint64_t jitter_seed_;
  const Clock& clock_;
  FetchCounters& counters_;
  const Answer answer_;

  std::atomic<std::int64_t> hedge_delay_ns_{Nanos::max().count()};  // what hedges_ says, for the loops
  Mutex mu_;
  GrowingLimit limit_ STOKER_GUARDED_BY(mu_);
  int maximum_ STOKER_GUARDED_BY(mu_);
  Prefixes prefixes_ STOKER_GUARDED_BY(mu_);
  std::vector<ThrottleLimit> prefix_limits_ STOKER_GUARDED_BY(mu_);  // by number
  StoreWatch watch_ STOKER_GUARDED_BY(mu_);
  HedgePolicy hedges_ STOKER_GUARDED_BY(mu_);
};

}  // namespace stoker

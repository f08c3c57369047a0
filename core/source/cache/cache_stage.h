#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "source/blocking_pool.h"
#include "source/cache/disk_cache.h"
#include "source/job.h"
#include "source/job_queue.h"

namespace stoker {

/// What a job for the network knows of the cache. The two requests of a race share it; only the one that counts, once
/// it does, touches `found`.
struct Kept {
  CacheKey key;
  std::string etag;     ///< of `found`; empty: there is nothing
  FetchedObject found;  ///< the answer, if the store says that it is still current
};

/// The disk cache before the network: looks requests up on threads of its own, and sees the answers. Threads: any.
class CacheStage final : private JobOwner, private BlockingSource {
 public:
  static constexpr int kThreads = 8;
  using Next = std::function<void(std::unique_ptr<Job>)>;

  /// @param s3_endpoint  What tells stores apart that know the same s3:// URL.
  /// @param pass_on      Gets jobs that are for the network.
  /// @param answer       Gets jobs that need not ask it.
  /// @return As DiskCache::open.
  static Result<std::unique_ptr<CacheStage>> create(CacheSettings settings, std::string s3_endpoint, const Clock& clock,
                                                    Next pass_on, Next answer);
  ~CacheStage() override { stop(); }

  /// Takes a new job for the network.
  void push(std::unique_ptr<Job> job);
  /// Sees how such a job ends. Where the kept object is the answer (`Job::is_unchanged`), puts it in; where the network
  /// gave one, offers it to the cache.
  void settle_answer(Job& job, Result<FetchedObject>& result);
  /// What waits is passed on, and the threads end.
  void stop();
  CacheStats stats() const { return cache_->stats(); }

 private:
  CacheStage(std::unique_ptr<DiskCache> cache, std::string s3_endpoint, const Clock& clock, Next pass_on, Next answer);
  CacheKey key_of(const FetchRequest& request, const Location& at) const;
  std::unique_ptr<Job> take(int worker, Nanos now, Nanos& look_again) override {
    return queue_.take(worker, now, look_again);
  }
  void settle(int worker, std::unique_ptr<Job> job, Outcome outcome) override;
  Result<FetchedObject> read(const FetchRequest& request, const Location& at, std::stop_token stop) const override;

  const std::string s3_endpoint_;
  const Next pass_on_;
  const Next answer_;
  const std::unique_ptr<DiskCache> cache_;
  JobQueue queue_{kThreads};
  BlockingPool pool_;
};

}  // namespace stoker

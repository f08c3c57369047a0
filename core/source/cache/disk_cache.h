#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/result.h"
#include "metric/metric.h"
#include "source/cache/cache_folder.h"
#include "source/cache/cache_settings.h"
#include "source/cache/entry.h"
#include "source/source.h"

namespace stoker {

/// Keeps whole objects on a local disk, for later epochs and restarts: of all objects a share, chosen by a hash of
/// where they come from, as large as the limit allows. Every epoch finds the same share, in whatever order it comes by
/// (least recently used would find nothing: each object is evicted just before it comes by again).
///
/// Trouble with the disk is never trouble for a request: what cannot be read is a miss, what cannot be written is not
/// kept; then writing rests for a while, and one line says so. See README.md.
class DiskCache {
 public:
  /// What is copied and not yet written, and so the largest object that is kept. Stands beside the memory budget.
  static constexpr std::size_t kMaxQueuedBytes = std::size_t{64} << 20;
  /// Of a larger object no part is served: all of it would have to be read to know that it is sound.
  static constexpr std::uint64_t kMaxForParts = std::uint64_t{4} << 20;
  static constexpr Nanos kFirstRest = std::chrono::minutes(1);
  static constexpr Nanos kLongestRest = std::chrono::hours(1);

  /// Makes the folder and starts the thread that writes. @return As CacheFolder::open.
  static Result<std::unique_ptr<DiskCache>> open(CacheSettings settings, const Clock& clock);
  ~DiskCache();
  DiskCache(const DiskCache&) = delete;
  DiskCache& operator=(const DiskCache&) = delete;

  bool is_validated() const { return settings_.is_validated; }
  /// Whether objects of this key are of the share that is kept. Threads: any.
  bool is_of_share(const CacheKey& key) const { return key.place < end_place_.load(std::memory_order_relaxed); }

  /// The kept object, or the part of it that `request` wants, as a store would give it. What is damaged is deleted. An
  /// object with another tag than `request.if_match` is none. Threads: any. Blocks on the disk.
  std::optional<FetchedObject> read(const CacheKey& key, const FetchRequest& request);
  /// Keeps a copy of a whole object, if it is of the share and writing keeps up. Threads: any. Does not block.
  void offer(const CacheKey& key, const FetchedObject& whole) STOKER_EXCLUDES(mu_);
  /// Deletes what is kept. Threads: any.
  void forget(const CacheKey& key);
  /// How a request for what could have been kept was answered. Threads: any.
  void count_hit(std::uint64_t n_bytes);
  void count_miss(bool has_changed);

  CacheStats stats() const;
  /// Drops what is not written, and ends the thread.
  void stop();
  /// Waits until all that was offered is written or dropped.
  void drain() STOKER_EXCLUDES(mu_);

 private:
  struct Offered {
    CacheKey key;
    std::string etag;
    Buffer object;
  };

  DiskCache(CacheSettings settings, std::unique_ptr<CacheFolder> folder, const Clock& clock);
  void run();
  bool has_joined();
  Status keep(const Offered& offered);
  bool is_kept(const CacheKey& key, std::string_view etag);
  void rest(const Status& why);
  void note(const CacheTotals& totals);

  const CacheSettings settings_;
  const std::uint64_t max_object_bytes_;
  const std::unique_ptr<CacheFolder> folder_;
  const Clock& clock_;

  // The writing thread's own.
  bool is_member_ = false;
  Nanos rest_ = kFirstRest;

  std::atomic<std::uint64_t> end_place_{UINT64_MAX};  // these three: written by the writing thread
  std::atomic<std::uint64_t> used_bytes_{0};
  std::atomic<std::int64_t> resting_until_ns_{0};
  Counter n_hits_, n_misses_, n_changed_, n_hit_bytes_, n_written_, n_written_bytes_, n_lagging_, n_evicted_,
      n_damaged_;

  std::stop_source stop_;
  Mutex mu_;
  std::condition_variable_any changed_;
  std::deque<Offered> queue_ STOKER_GUARDED_BY(mu_);
  std::size_t queued_bytes_ STOKER_GUARDED_BY(mu_) = 0;  // of the one that is being written too
  std::thread thread_;
};

}  // namespace stoker

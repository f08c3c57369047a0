#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "mem/buffer.h"
#include "source/cache/cache_settings.h"
#include "source/storage_settings.h"

namespace stoker {

/// Room in somebody's memory budget for so many bytes of an answer, or nothing if there is none now. Called on a source
/// thread once the size is known and before there is memory for it; more than once if a try is repeated or asked a
/// second time, or if a body whose size was not announced grows. Must be cheap.
using LeaseFor = std::function<std::optional<Lease>(std::size_t n_bytes)>;

/// One object, or a part of one. `url` is what resolve_media gave: an absolute path, s3://bucket/key (the key literal,
/// never percent-decoded), http(s)://... or mem://name.
struct FetchRequest {
  std::string url = {};
  std::uint64_t offset = 0;
  /// Bytes wanted from `offset` on; absent: all the rest. What lies past the end is not an error: fewer bytes come, or
  /// none.
  std::optional<std::uint64_t> length = std::nullopt;
  /// Smaller starts first: the place in the plan. Equal ones start in the order of submission.
  std::uint64_t priority = 0;
  /// Only if the object still has this tag (`FetchedObject::etag`), else MEDIA_CHANGED. Empty: any.
  std::string if_match = {};
  /// Nobody needs the answer any more: the request ends with STOPPED, within about a tenth of a second if it is on the
  /// wire.
  std::stop_token stop = {};
  /// May come from the disk cache, and be kept there: media, not what must be noticed when it changes.
  bool is_media = false;
  /// What a store packed (Content-Encoding: gzip, deflate) is unpacked, for a part by reading the whole; unless the
  /// bytes are wanted just as they are stored.
  bool as_stored = false;
  /// The lease stays with the answer's buffer. Where it gives nothing the request ends with BUDGET. Absent: the memory
  /// is not counted.
  LeaseFor lease_for = {};
};

/// @return BUDGET if `lease_for` or the system has no room.
Result<Buffer> make_buffer(const LeaseFor& lease_for, std::size_t n_bytes);

struct FetchedObject {
  Buffer bytes;                   ///< exactly the part that was asked for and exists, in memory that nobody else holds
  std::uint64_t total_bytes = 0;  ///< of the whole object
  std::string etag;               ///< as the store gave it (with its quotes); empty if it gave none
  /// Of the try that answered, from its start, a new connection included: until the first byte of the answer came
  /// (files: `took`), and until all of it.
  Nanos first_byte{0}, took{0};
};

/// Gets the one answer to a request, on a source thread (on the caller's if the fetcher is stopped). Must be cheap, and
/// may submit again: what it does, all other requests wait for.
using FetchDone = std::function<void(Result<FetchedObject>)>;

/// How patient the fetcher is. All limits watch progress; a slow object that keeps coming is never given up.
struct FetchTimeouts {
  std::chrono::milliseconds connect{10'000};     ///< name, connection, TLS
  std::chrono::milliseconds first_byte{30'000};  ///< from the start of the request to the first byte of an answer
  std::chrono::milliseconds stall{30'000};       ///< without a single byte of the body
  std::chrono::milliseconds total{0};            ///< for one try of one object; 0: none
};

/// Full jitter: the n-th wait is uniform in [0, min(cap, base * 2^n)], never less than the store's Retry-After.
struct FetchRetry {
  std::chrono::milliseconds base{100};
  std::chrono::milliseconds cap{10'000};
};

struct FetchSettings {
  /// Network requests in flight at one time, all threads together. Of a prefix (bucket and first two folders) that
  /// throttles, fewer for a while.
  int concurrency = 64;
  /// While more requests in flight bring more bytes, `concurrency` is doubled, up to this. 0: it stays as it is.
  int max_concurrency = 0;
  int n_threads = 1;  ///< event loops; one moves about a gigabyte per second without TLS
  int n_file_threads = 4;
  /// A larger whole object is refused before its body is read (MEDIA_TOO_LARGE): a lying header must not empty the
  /// machine.
  std::uint64_t max_object_bytes = std::uint64_t{1} << 31;
  /// A request whose first byte is later than almost all others' is asked a second time, and the first answer counts:
  /// at most this share of extra requests. 0: never.
  double hedge_share = 0.02;
  double outage_limit_s = 600;    ///< a request that only failed for so long ends with OUTAGE
  std::uint64_t jitter_seed = 0;  ///< 0: from process and time, so that ranks do not retry in step
  FetchTimeouts timeouts;
  FetchRetry retry;
  StorageSettings storage;
  CacheSettings cache;
};

/// Counts since creation (first group) and the moment's state (second). Plain numbers; may be a few requests apart from
/// one another.
struct FetchStats {
  std::int64_t n_submitted = 0;
  std::int64_t n_succeeded = 0;
  std::int64_t n_failed = 0;                    ///< ended with an error, cancelled ones included
  std::int64_t n_shared = 0;                    ///< that wanted what another one was asking for, and got a copy
  std::int64_t n_retries = 0;                   ///< tries after the first
  std::int64_t n_hedges = 0;                    ///< second requests for bytes that were late
  std::int64_t n_hedges_won = 0;                ///< of these, the ones that answered first
  std::int64_t n_throttled = 0;                 ///< answers that asked to slow down (503 SlowDown, 429)
  std::map<Reason, std::int64_t> failed_tries;  ///< that ended without an answer, retried or not; stopped ones apart
  std::int64_t n_bytes = 0;                     ///< of successful answers
  /// Of bodies that came over the network, whatever became of them: second requests and failed tries included.
  std::int64_t n_wire_bytes = 0;
  std::int64_t busy_ns = 0;  ///< sum over successful answers of the time from start to end of the last try

  std::int64_t n_waiting = 0;   ///< submitted, not started
  std::int64_t n_retrying = 0;  ///< waiting for their next try
  std::int64_t n_in_flight = 0;
  std::int64_t limit = 0;  ///< network requests allowed in flight now
  std::optional<CacheStats> cache;
};

/// A request without an answer yet, one that waits for its turn or its next try included.
struct PendingFetch {
  std::string url;  ///< as people may see it
  Nanos since{0};   ///< its submission
  std::size_t n_pending = 0;
};

/// Reads objects from files, S3 and HTTP servers: many requests in flight on a few threads, in the order of the plan.
///
/// Network reads of the same bytes that are wanted at the same time are asked for once (unless the later comer stands
/// earlier in the plan); stopping one of them does not end it for the others.
///
/// Retries are its own business: what may work later (throttling, server errors, lost connections, timeouts, short
/// bodies) is tried again with backoff, without holding up other requests, and is logged while it lasts. A request
/// fails with
///  - a bad-sample reason only on proof: MEDIA_NOT_FOUND (404, 410, no such file), MEDIA_CHANGED, MEDIA_SCHEME,
///  MEDIA_TOO_LARGE, MEDIA_CHECKSUM, MEDIA_ENCODING;
///  - OUTAGE after `outage_limit_s` of failures; the message names the last cause;
///  - FETCH_CREDENTIALS, FETCH_DENIED, FETCH_REDIRECT or FETCH_TLS at once while nothing has ever been read from that
///  kind of storage: then
///    the settings are wrong and waiting does not help;
///  - MANIFEST if the bucket does not exist; BUDGET if there is no memory for it; STOPPED.
/// Messages and log lines hold URLs without queries and never a part of a credential.
/// Memory: an answer's buffer is made when its size is known. Queues are bounded by the callers, who submit a bounded
/// number. Threads: every method from any thread. The destructor stops.
class Fetcher {
 public:
  /// Reads the environment and the AWS profile files once, and starts the threads. No network.
  /// @return SETTINGS for values out of range or an endpoint that is no URL. Missing credentials show at the first
  /// s3:// request.
  static Result<std::unique_ptr<Fetcher>> create(FetchSettings settings, const Clock& clock = Clock::real());
  ~Fetcher();
  Fetcher(const Fetcher&) = delete;
  Fetcher& operator=(const Fetcher&) = delete;

  /// `done` is called exactly once. Does not block.
  void submit(FetchRequest request, FetchDone done);
  /// Submits and waits. Returns STOPPED soon after `stop` is requested.
  Result<FetchedObject> fetch(FetchRequest request, std::stop_token stop = {});
  /// Cancels everything: every open request gets STOPPED, every thread ends. Below a second, whatever the stores do.
  /// Not from a callback.
  void stop();

  /// Takes effect at once for what has not started. Clamped to [1, 16384].
  void set_concurrency(int concurrency);
  FetchStats stats() const;
  /// Of the requests without an answer the one that is first in the plan.
  std::optional<PendingFetch> first_pending() const;

 private:
  class Impl;
  explicit Fetcher(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Bytes so far and in all; called on the thread that waits.
using DownloadProgress = std::function<void(std::uint64_t n_done, std::uint64_t n_total)>;

/// Mirrors one object into a local file, in parts, several at a time. The file appears under its name only when it is
/// complete (written beside it, synced, renamed), so a crash leaves no half file that looks whole.
/// @param if_match  Only if the object still has this tag; empty: the one that it has at the beginning.
/// @return what fetch returns; MANIFEST if the object changed meanwhile, INDEX_DIR if the file cannot be written.
/// Threads: any. Blocks.
Status download(Fetcher& fetcher, const std::string& url, const std::string& path, std::stop_token stop = {},
                const DownloadProgress& progress = {}, const std::string& if_match = {});

}  // namespace stoker

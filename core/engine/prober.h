#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "pipeline/settings.h"
#include "source/source.h"

namespace stoker {

struct ProbeOptions {
  std::vector<std::string> urls = {};  ///< as FetchRequest takes them; empty: the media of the settings' manifests
  std::size_t max_objects = 20'000;    ///< taken from the manifests, in the order of the settings' seed
  int max_concurrency = 1024;
};

/// What there is to read.
struct ProbeObjects {
  std::size_t n_objects = 0;   ///< different ones
  bool are_parts = false;      ///< of one large object
  bool are_local = false;      ///< files: no network is measured
  std::uint64_t n_rows = 0;    ///< of the manifests, looked at
  std::uint64_t n_media = 0;   ///< mentions in them that are read from storage
  std::uint64_t n_inline = 0;  ///< mentions that stand in their row
  std::uint64_t n_sized = 0;   ///< mentions whose size the row says
};

/// What came of some seconds with so many requests in flight.
struct ProbePhase {
  int concurrency = 0;
  double elapsed_s = 0;           ///< from when every place had its first answer
  std::int64_t n_answers = 0;     ///< in that time
  std::int64_t n_bytes = 0;       ///< of these
  double cpu_s = 0;               ///< of the process, from the phase's begin to its last answer
  double whole_s = 0;             ///< the same of the clock
  std::int64_t n_requests = 0;    ///< in all
  std::int64_t n_repeated = 0;    ///< of these, for objects that had been asked for before
  std::int64_t n_unanswered = 0;  ///< given up; in the samples with the time that they had waited
  std::int64_t n_throttled = 0;   ///< answers that asked to slow down
  int limit = 0;                  ///< requests that the fetcher allowed in flight at the end; throttling lowers it
  std::map<Reason, std::int64_t> failed_tries;
  /// Of the answers to requests that began in `elapsed_s`, in the order in which they came; bytes of the object or
  /// part.
  std::vector<double> first_byte_s, took_s, bytes;
};

/// Reads objects as a loader would, with the real fetcher, to see how their storage answers: phases of so many requests
/// in flight, never the same object twice as long as there are others. Without second requests for late answers, so
/// that the tail is the storage's own. Of an object no more than `kPartBytes` are read. Threads: one, except stop().
class Prober {
 public:
  static constexpr std::uint64_t kPartBytes = std::uint64_t{4} << 20;

  /// Starts to look for objects. @return SETTINGS.
  static Result<std::unique_ptr<Prober>> create(LoaderSettings settings, ProbeOptions options,
                                                const Clock& clock = Clock::real());
  ~Prober() { stop(); }
  Prober(const Prober&) = delete;
  Prober& operator=(const Prober&) = delete;

  /// @return Whether objects() are known; what kept them from it (MANIFEST, MEDIA_NOT_FOUND, NO_DATA, FETCH_* ...).
  Result<bool> open_within(std::chrono::milliseconds timeout) STOKER_EXCLUDES(mu_);
  /// Once they are known.
  const ProbeObjects& objects() const { return objects_; }
  /// Where they lie: "s3", "files", or scheme and authority of an address, without a user.
  const std::string& storage() const { return storage_; }
  /// What is going on before that, for people.
  std::string progress() const STOKER_EXCLUDES(mu_);

  /// Keeps `concurrency` requests in flight for `lasts`, then waits for what is under way, at most `patience`.
  /// After the one before has ended.
  void begin_phase(int concurrency, Nanos lasts, Nanos patience);
  /// @return The phase if it ended within `timeout`; what kept anything from being read so far.
  Result<std::optional<ProbePhase>> phase_within(std::chrono::milliseconds timeout);
  /// Ends the phase at once: what it measured so far. Well below a second.
  ProbePhase end_phase();
  /// Ends every thread, well below a second. Repeatable. Threads: any.
  void stop();

 private:
  struct Target {
    std::string url;
    std::uint64_t offset = 0;
  };
  struct Phase;
  Prober(LoaderSettings settings, ProbeOptions options, const Clock& clock);
  void open(std::stop_token stop);
  Status find_objects(std::stop_token stop);
  Status take_parts(const std::string& url, std::stop_token stop);
  Status take_media(std::stop_token stop);
  void submit(const std::shared_ptr<Phase>& phase);
  bool answered(Phase& phase, Nanos began, Result<FetchedObject> got);
  ProbePhase finished(Phase& phase) const;

  const LoaderSettings settings_;
  const ProbeOptions options_;
  const Clock& clock_;
  std::unique_ptr<Fetcher> fetcher_;  // constant after create()

  std::vector<Target> targets_;  // the opening thread's own, until it is done
  ProbeObjects objects_;
  std::string storage_;

  std::atomic<std::uint64_t> next_target_{0};  // written by whoever submits
  std::atomic<std::int64_t> n_read_{0};        // written by source threads
  std::shared_ptr<Phase> phase_;               // the caller's own

  mutable Mutex mu_;
  std::condition_variable_any changed_;
  bool is_open_ STOKER_GUARDED_BY(mu_) = false;
  Status status_ STOKER_GUARDED_BY(mu_);
  std::string progress_ STOKER_GUARDED_BY(mu_);

  std::jthread thread_;  // last: joined first
};

}  // namespace stoker

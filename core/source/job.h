#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "source/hedge.h"
#include "source/partial.h"
#include "source/shared_reads.h"
#include "source/source.h"
#include "source/url.h"

namespace stoker {

struct Kept;  // source/cache/cache_stage.h

/// One request on its way through queue, tries and retries. Owned by exactly one of them at a time.
struct Job {
  FetchRequest request;
  Location at;
  FetchDone done;
  std::uint64_t sequence = 0;  ///< order of submission
  int prefix = 0;              ///< which part of a store it asks, see Prefixes
  int n_tries = 0;             ///< that have ended
  int n_failures = 0;          ///< of these, the ones that count for backoff
  std::optional<Nanos> failing_since;
  std::optional<Partial> partial;  ///< what the last try got
  struct WrongChecksum {
    std::string computed;  ///< of the last whole body
    int n_times = 0;       ///< that it came in a row
  };
  WrongChecksum wrong_checksum;
  bool reads_whole = false;            ///< though a part is wanted: see Answer::needs_whole
  bool is_hedge = false;               ///< the second request of a race
  std::shared_ptr<Race> race;          ///< if the same bytes are asked for twice
  std::shared_ptr<SharedRead> shared;  ///< those who want the same bytes and did not ask
  std::shared_ptr<Kept> kept;          ///< what the disk cache has to do with it; null: nothing
  bool is_unchanged = false;           ///< what the cache found is the answer

  /// Nobody needs the answer any more.
  bool is_unwanted() const {
    if (race && race->is_over()) return true;
    return request.stop.stop_requested() && !(shared && shared->is_wanted());
  }
};

/// How one try ended, and what the retry policy needs to know about it.
struct Outcome {
  Status status;  ///< ok: `object` is the answer
  FetchedObject object;
  std::optional<Nanos> retry_after;  ///< the store's own wish
  std::optional<Partial> partial;    ///< of a body that ended early
  bool is_throttled = false;
  bool try_again_now =
      false;  ///< something was learned (a region, fresh credentials) that makes the next try another one
  std::uint64_t n_wire_bytes = 0;  ///< of the body, whatever became of it
  Nanos took{0};
  std::optional<Nanos> first_byte;  ///< from the start to the first byte of an answer, if one came

  static Outcome failed(Status why) {
    Outcome outcome;
    outcome.status = std::move(why);
    return outcome;
  }
  static Outcome failed(Reason reason, std::string message) { return failed(Status(reason, std::move(message))); }
};

/// Where the threads that do the work get jobs and leave their outcomes.
class JobOwner {
 public:
  virtual ~JobOwner() = default;
  /// The next job for this worker, or nothing; then `look_again` is when a waiting retry becomes due (Nanos::max():
  /// wait to be woken).
  virtual std::unique_ptr<Job> take(int worker, Nanos now, Nanos& look_again) = 0;
  /// Ends a try: the worker's slot is free, and the job is answered or queued again.
  virtual void settle(int worker, std::unique_ptr<Job> job, Outcome outcome) = 0;
  /// How long a first byte may take before the worker calls `hedge`; Nanos::max(): it need not.
  virtual Nanos hedge_delay() const { return Nanos::max(); }
  /// The job has no first byte after that delay: the owner may ask for the same bytes a second time. At most once per
  /// job.
  virtual void hedge(Job& job) { static_cast<void>(job); }
};

}  // namespace stoker

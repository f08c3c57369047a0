#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "data/pack.h"
#include "engine/feed.h"
#include "engine/loader_state.h"
#include "engine/opening.h"
#include "engine/sample_origin.h"
#include "peers/follower.h"
#include "peers/leader.h"
#include "pipeline/pipeline.h"
#include "pipeline/settings.h"
#include "pipeline/wait_meter.h"

namespace stoker {

/// Time in the user's own code, summed over the workers that called it.
struct UserCodeTimes {
  double busy_s = 0;
  double wait_s = 0;  ///< for the interpreter, which the trainer's threads need too
  std::int64_t n_calls = 0;
};

/// What a loader has delivered and waited for, and what its stages did.
struct LoaderReport {
  WaitTotals wait;
  std::int64_t steps = 0, batches = 0, samples = 0, tokens = 0, target_tokens = 0, patches = 0;
  std::int64_t bytes = 0;  ///< of the arrays handed over
  double fill = 0;         ///< tokens handed over / those that a pack, or its padded rows, have room for
  std::map<Reason, std::int64_t>
      bad;  ///< samples not used, those planned around counted by the rank that writes their line
  std::optional<PipelineSnapshot> pipeline;  ///< absent where a peer prepares
  std::optional<PeerReport> peers;           ///< absent where there are none
  std::optional<UserCodeTimes> user_code;
  int cpu_threads = 0, fetch_concurrency = 0, prefetch_steps = 0;
};

/// One data-parallel rank's data. Threads: one (the trainer's), except close() and report(), which any thread may call.
/// No call blocks longer than its timeout; none needs Python.
class Loader {
 public:
  /// Checks the settings and begins to open model and manifests on a thread of its own.
  /// @return SETTINGS or MEMORY_LIMIT with a sentence that says what would fit.
  static Result<std::unique_ptr<Loader>> create(LoaderSettings settings, const Clock& clock = Clock::real());
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// @return Whether model and manifests are open; what is wrong with them.
  Result<bool> open_within(std::chrono::milliseconds timeout);
  /// What opening is doing, for people; empty when there is nothing to say.
  std::string progress() const { return opening_.progress(); }

  /// The next batch in plan order; nothing if none came within the timeout or the finite data ended (`is_at_end`).
  /// @return The error that ends the run: it comes again at every further call.
  Result<std::optional<Batch>> next_within(std::chrono::milliseconds timeout);
  bool is_at_end() const { return feed_ && feed_->is_at_end(); }
  bool has_started() const { return has_started_; }

  /// After the last whole step that was delivered. `is_inside_step` tells that a part of the next step was delivered
  /// too.
  Result<LoaderState> state(bool* is_inside_step = nullptr) const;
  /// After `steps` whole steps of the run, which must be among the last 64 delivered. @return STATE.
  Result<LoaderState> state_after(std::int64_t steps) const;
  /// Takes effect at the first next_within(). @param accepted  As resume_point(); the warning goes to the log.
  /// @return STATE if the iteration has begun, or as resume_point().
  Status load_state(const LoaderState& state, const std::vector<std::string>& accepted = {});

  /// @return STATE before opening; SETTINGS for an index that the order does not have. Where a peer prepares, the first
  /// call opens the manifests, with what that may return.
  Result<SampleOrigin> describe(std::int64_t sample_id) const STOKER_EXCLUDES(describe_mu_);
  LoaderReport report() const STOKER_EXCLUDES(life_mu_, told_mu_);
  void add_wait(double seconds) STOKER_EXCLUDES(told_mu_);

  /// Ends every thread. Batches that were handed out stay valid. Repeatable.
  void close() STOKER_EXCLUDES(life_mu_);

  const LoaderSettings& settings() const { return settings_; }
  /// What the model's processor does to pixels; after opening.
  const peers::PixelFacts& pixels() const { return pixels_; }

 private:
  explicit Loader(LoaderSettings settings, const Clock& clock);
  Status open(const std::stop_token& stop, const Opening::Say& say);
  Status open_engine(const std::stop_token& stop, const Opening::Say& say);
  Status open_handed(const std::stop_token& stop, const Opening::Say& say);
  Status open_follower(const std::stop_token& stop, const Opening::Say& say);
  peers::Place place() const;
  Status check_usable() const;
  Status check_open() const;
  Status start() STOKER_EXCLUDES(life_mu_);
  Result<std::optional<Batch>> take_within(std::chrono::milliseconds timeout);
  Status account(const peers::Delivery& delivery) STOKER_EXCLUDES(told_mu_);
  Status write_left_over() STOKER_EXCLUDES(told_mu_);
  Status check_stall(Nanos waited);
  Status check_memory_stall();
  Result<const Dataset*> manifests() const STOKER_EXCLUDES(describe_mu_);
  LoaderState with_cursor(const PlanState& cursor) const;

  const LoaderSettings settings_;
  const Clock& clock_;
  const pid_t pid_;
  std::atomic<bool> is_closed_{false};  // written by close()

  std::shared_ptr<const qwen_vl::QwenVl> model_;  // written while it opens, read after that
  std::optional<Dataset> dataset_;                // absent where another process prepares
  std::unique_ptr<KnownLengths> known_;
  std::string fingerprint_;
  peers::PixelFacts pixels_;
  std::shared_ptr<peers::Leader> leader_;      // where there are peers
  std::shared_ptr<peers::Follower> follower_;  // where another one leads

  std::shared_ptr<TcpServer> service_;  // of rank 0; written by the opening thread, let go by close() after it

  mutable Mutex describe_mu_;
  mutable std::optional<Dataset> described_ STOKER_GUARDED_BY(describe_mu_);  // a follower's, for describe() only

  mutable Mutex life_mu_;             // held while threads are begun or ended
  std::unique_ptr<Fetcher> fetcher_;  // until it moves into the pipeline; written under life_mu_
  std::unique_ptr<Feed> feed_;        // written once, by the trainer's thread under life_mu_: it may read it without

  std::unique_ptr<Ledger> ledger_;  // from here on: the trainer thread's own
  Status failed_;                   // what ended the run
  bool has_started_ = false;
  bool is_step_start_ = true;
  bool is_in_next_ = false;
  Nanos open_wait_{0};     // part of the cold start
  Nanos waited_{0};        // for the batch that is due, in next_within()
  Nanos next_warning_{0};  // when that wait is told of
  std::optional<Nanos> stalled_since_;
  bool is_stall_told_ = false;
  PlanState cursor_;
  std::deque<PlanState> history_;  // where the run began and after each of the last whole steps, newest last

  mutable Mutex told_mu_;
  WaitMeter meter_ STOKER_GUARDED_BY(told_mu_);
  LoaderReport delivered_ STOKER_GUARDED_BY(told_mu_);
  std::int64_t room_tokens_ STOKER_GUARDED_BY(told_mu_) = 0;  // that those packs had

  Opening opening_;  // last: ended first
};

}  // namespace stoker

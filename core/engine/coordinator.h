#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "engine/late_bad.h"
#include "engine/loader_state.h"
#include "engine/made_wire.h"
#include "engine/opened_run.h"
#include "engine/opening.h"
#include "engine/sample_origin.h"
#include "exec/worker_pool.h"
#include "pipeline/known_lengths.h"
#include "pipeline/plan_stage.h"
#include "pipeline/snapshot.h"

namespace stoker {

/// A pack that a worker is to make.
struct TaskInfo {
  std::uint64_t sequence = 0;  ///< running number over all ranks
  std::int32_t rank = 0;
  std::int64_t step = 0, micro_batch = 0, micro_batches_in_step = 0;
  bool is_last_of_step = false;  ///< of its rank
  std::size_t n_bytes = 0;       ///< of its arrays, as planned and before any is squeezed
  std::int64_t n_samples = 0;    ///< 0: a dummy
  std::int64_t cost = 0;         ///< BatchCounts::cost
  std::string message;           ///< for PackWorker::make
};

/// What a coordinator has handed out and delivered, over all ranks.
struct CoordinatorReport {
  std::int64_t packs_handed_out = 0, packs_delivered = 0;
  std::int64_t message_bytes = 0;  ///< of the tasks handed out
  std::int64_t samples = 0, tokens = 0, target_tokens = 0, patches = 0, video_patches = 0;
  std::int64_t bytes = 0;  ///< of the packs' arrays
  std::map<Reason, std::int64_t> bad;
  std::optional<PipelineSnapshot> pipeline;  ///< absent before start()
};

/// Plans for all ranks of a run and keeps its books: which packs are to be made, what came of them, the ledger. It sees
/// no array of a pack. One process measures for the job, so that nothing is exchanged.
/// Threads: any, next_task_within() one at a time. No call blocks longer than its timeout, or for a line of the ledger.
class Coordinator {
 public:
  /// @param settings  As a rank's; `dp_size` says how many ranks there are. @return SETTINGS.
  static Result<std::unique_ptr<Coordinator>> create(LoaderSettings settings, const Clock& clock = Clock::real());
  ~Coordinator() { close(); }
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  /// @return Whether model, manifests and the index of lengths are open; what is wrong with them.
  Result<bool> open_within(std::chrono::milliseconds timeout) { return opening_.within(timeout); }
  std::string progress() const { return opening_.progress(); }
  /// What ranks learn of the run: peers::Welcome as a message. @return STATE before it is open.
  Result<std::string> welcome() const;
  /// @return STATE before it is open.
  Result<std::string> fingerprint() const;

  /// Begins to plan, once. @return STATE, as Loader::load_state.
  Status start(const LoaderState& state, const std::vector<std::string>& accepted) STOKER_EXCLUDES(mu_);
  /// A rank wants this step: its packs may be made, and those of as many steps behind it as prefetch goes.
  /// @return STATE before start().
  Status want_step(std::int64_t step) STOKER_EXCLUDES(mu_);
  /// The next pack in plan order, in a step by (micro-batch, rank). @return Nothing if none came in time, or at the end
  /// of finite data (`is_at_end`); what ended planning, after all packs that were planned before are delivered.
  Result<std::optional<TaskInfo>> next_task_within(std::chrono::milliseconds timeout) STOKER_EXCLUDES(mu_);
  /// Every pack of a finite order was handed out.
  bool is_at_end() const { return is_at_end_; }

  /// A pack was made: writes its lines of the ledger and judges bad samples over the whole job. In each rank's order,
  /// each pack once.
  /// @return What its rank is told, peers::Pack as a message whose `sequence` counts its rank's packs; what ends the
  /// run in the pack's place; PEER_MISMATCH, which ends nothing, for what is not the result of that task.
  Result<std::string> deliver(std::uint64_t sequence, std::string_view made) STOKER_EXCLUDES(mu_);
  /// No worker can make that pack, since what the index says of its rows is not so (PLAN_MISMATCH): a later run
  /// measures them anew. Nothing for a pack that is not being made.
  void forget_lengths(std::uint64_t sequence) STOKER_EXCLUDES(mu_);
  /// After the last delivery of finite data: writes the lines of samples that no pack carries. @return What a rank is
  /// told, peers::End as a message; only the first one counts those samples.
  Result<std::string> end() STOKER_EXCLUDES(mu_);

  /// @return STATE before it is open; as origin_of.
  Result<SampleOrigin> describe(std::int64_t sample_id) const;
  CoordinatorReport report() const STOKER_EXCLUDES(mu_);
  const LoaderSettings& settings() const { return settings_; }

  /// Ends every thread within a second; every call returns CLOSED from now on. Repeatable.
  void close() STOKER_EXCLUDES(close_mu_, mu_);

 private:
  /// A pack that is being made.
  struct Book {
    std::int32_t rank = 0;
    BatchCounts counts = {};
    bool is_last_of_step = false;
    PlanState state_after = {};
    PackShape planned = {};
    std::vector<LedgerEntry> planned_around = {};
    std::vector<std::pair<std::uint64_t, OrderEntry>> members = {};  ///< order index
  };

  Coordinator(LoaderSettings settings, std::unique_ptr<Fetcher> fetcher, const Clock& clock);
  Status open(const std::stop_token& stop, const Opening::Say& say);
  Status check_usable() const;
  Result<PlanStage*> started() const STOKER_EXCLUDES(mu_);
  TaskInfo hand_out(PackTask task) STOKER_REQUIRES(mu_);
  Status write_left_over() STOKER_REQUIRES(mu_);
  Status write(const std::vector<LedgerEntry>& entries) STOKER_REQUIRES(mu_);
  Result<std::vector<LedgerEntry>> found_late(const Book& book, const MadeMessage& made) const;

  const LoaderSettings settings_;
  const Clock& clock_;
  std::atomic<bool> is_closed_{false};  // written by close()
  std::atomic<bool> is_at_end_{false};
  std::atomic<std::int64_t> began_ns_{0}, ended_ns_{0};  // of planning; 0: not yet

  const std::unique_ptr<Fetcher> fetcher_;
  std::optional<OpenedRun> run_;  // like known_ written by the opening thread, read after it
  std::unique_ptr<KnownLengths> known_;

  mutable Mutex mu_;
  std::unique_ptr<WorkerPool> workers_ STOKER_GUARDED_BY(mu_);  // like plan_ made once, by start()
  std::unique_ptr<PlanStage> plan_ STOKER_GUARDED_BY(mu_);
  std::optional<Ledger> ledger_ STOKER_GUARDED_BY(mu_);
  std::optional<LateBad> late_ STOKER_GUARDED_BY(mu_);
  std::uint64_t first_step_ STOKER_GUARDED_BY(mu_) = 0;
  std::map<std::uint64_t, Book> out_ STOKER_GUARDED_BY(mu_);  // bounded by the gate: packs of prefetch_steps + 1 steps
  std::vector<std::deque<std::uint64_t>> out_of_rank_ STOKER_GUARDED_BY(mu_);  // (ranks)
  std::optional<PlanEnd> plan_end_ STOKER_GUARDED_BY(mu_);
  CoordinatorReport told_ STOKER_GUARDED_BY(mu_);
  Status failed_ STOKER_GUARDED_BY(mu_);  // what ended the run

  Mutex close_mu_;
  Opening opening_;  // last: ended first
};

}  // namespace stoker

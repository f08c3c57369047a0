#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>

#include "base/mutex.h"
#include "base/result.h"
#include "data/pack.h"
#include "engine/opened_run.h"
#include "engine/opening.h"
#include "exec/worker_pool.h"
#include "mem/block.h"
#include "pipeline/preparer.h"
#include "pipeline/snapshot.h"

namespace stoker {

/// A finished pack on its way to its rank.
struct MadePack {
  Batch batch;       ///< `block` null: it was only tried
  std::string made;  ///< for Coordinator::deliver
  std::string tail;  ///< squeeze() of the batch

  /// The patches as they lie; they live as long as `batch.block`.
  std::span<const std::byte> pixels() const;
  std::size_t n_bytes() const { return pixels().size() + tail.size(); }
};

/// How a task is to be made.
struct MakeOptions {
  std::span<const std::uint32_t> rejected = {};  ///< members that are given up, WORKER_KILLED; nothing of them is read
  std::string why_rejected = {};                 ///< for the ledger; may be empty
  std::optional<std::uint32_t> only = {};        ///< try just this member, and drop it
};

struct WorkerReport {
  std::int64_t packs_made = 0, packs_tried = 0, packs_failed = 0;
  std::int64_t bytes = 0;  ///< of packs made: pixels and tails
  std::int64_t n_making = 0;
  PipelineSnapshot pipeline;
};

/// Makes packs that others have planned: a process's data, workers and memory, and no plan.
class PackWorker {
 public:
  /// @param settings  As a rank's, whatever `dp_size`. `speed.memory_limit_bytes` is for packs under way and handed
  /// over. @return SETTINGS.
  static Result<std::unique_ptr<PackWorker>> create(LoaderSettings settings, const Clock& clock = Clock::real());
  ~PackWorker() { close(); }
  PackWorker(const PackWorker&) = delete;
  PackWorker& operator=(const PackWorker&) = delete;

  /// @return Whether model and manifests are open; what is wrong with them.
  Result<bool> open_within(std::chrono::milliseconds timeout) { return opening_.within(timeout); }
  std::string progress() const { return opening_.progress(); }
  /// @return STATE before it is open.
  Result<std::string> fingerprint() const;

  /// Makes the pack of a TaskInfo::message. Memory is given out by the order of the plan, whoever came first.
  /// @return STATE before it is open; PEER_MISMATCH, PLAN_MISMATCH for a message of another run; MEMORY_LIMIT, BUDGET;
  /// what ends a run (OUTAGE, FETCH_*, MANIFEST, INTERNAL); STOPPED once the worker is closed.
  /// Threads: any. Blocks until the pack is made.
  Result<MadePack> make(std::string_view message, const MakeOptions& options) STOKER_EXCLUDES(mu_);

  WorkerReport report() const STOKER_EXCLUDES(mu_);
  const LoaderSettings& settings() const { return settings_; }

  /// Ends every make() and every thread within a second. Packs that were handed out stay valid. Repeatable.
  void close() STOKER_EXCLUDES(close_mu_, mu_);

 private:
  PackWorker(LoaderSettings settings, std::unique_ptr<Fetcher> fetcher, const Clock& clock);
  Status open(const std::stop_token& stop, const Opening::Say& say) STOKER_EXCLUDES(mu_);
  Status check_usable() const;
  Result<PackTask> task_of(std::string_view message, const MakeOptions& options, const std::stop_token& stop) const;
  Result<MadePack> make_now(std::string_view message, const MakeOptions& options);

  const LoaderSettings settings_;
  const Clock& clock_;
  const Nanos began_;
  std::stop_source stop_;
  std::atomic<std::int64_t> ended_ns_{0};  // when it was closed; 0: not yet
  const std::unique_ptr<Fetcher> fetcher_;
  WorkerPool workers_;

  std::optional<OpenedRun> run_;  // written by the opening thread, read after it, as are the next three
  std::shared_ptr<MemoryBudget> budget_;
  std::shared_ptr<BlockPool> blocks_;
  std::unique_ptr<Preparer> preparer_;

  mutable Mutex mu_;
  std::condition_variable_any changed_;
  WorkerReport told_ STOKER_GUARDED_BY(mu_);

  Mutex close_mu_;
  Opening opening_;  // last: ended first
};

}  // namespace stoker

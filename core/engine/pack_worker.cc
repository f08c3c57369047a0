#include "engine/pack_worker.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "data/pack_wire.h"
#include "engine/made_wire.h"
#include "pipeline/sample_steps.h"
#include "pipeline/task_wire.h"

namespace stoker {
namespace {

constexpr std::int32_t kHeld = 0;  // by a trainer: what is handed over is copied, and given back

/// What became of one pack. Its callbacks may outlive the call that waits for it.
class Outcome {
 public:
  void set(Result<ReadyPack> got) STOKER_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (got_) return;  // a pack may fail in several of its parts
    got_.emplace(std::move(got));
    changed_.notify_all();
  }
  /// @return STOPPED once `stop` is requested.
  Result<ReadyPack> wait(const std::stop_token& stop) STOKER_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    changed_.wait(lock, stop, [this]() STOKER_NO_ANALYSIS { return got_.has_value(); });
    if (!got_) return Status(Reason::kStopped, "the worker was closed");
    return std::exchange(got_, Status(Reason::kInternal, "taken")).value();
  }

 private:
  Mutex mu_;
  std::condition_variable_any changed_;
  std::optional<Result<ReadyPack>> got_ STOKER_GUARDED_BY(mu_);
};

}  // namespace

std::span<const std::byte> MadePack::pixels() const {
  return batch.block ? pixels_of(batch) : std::span<const std::byte>();
}

PackWorker::PackWorker(LoaderSettings settings, std::unique_ptr<Fetcher> fetcher, const Clock& clock)
    : settings_(std::move(settings)),
      clock_(clock),
      began_(clock.now()),
      fetcher_(std::move(fetcher)),
      workers_(settings_.speed.cpu_threads, "stoker-cpu", clock) {}

Result<std::unique_ptr<PackWorker>> PackWorker::create(LoaderSettings settings, const Clock& clock) {
  settings.dp_rank = 0;  // it makes packs of any
  settings.dp_size = 1;
  settings.peers = {};
  settings.hand_over = nullptr;
  STOKER_CHECKED(check_run_settings(settings));
  STOKER_TRY(std::unique_ptr<Fetcher> fetcher, Fetcher::create(fetch_settings(settings), clock));
  std::unique_ptr<PackWorker> out(new PackWorker(std::move(settings), std::move(fetcher), clock));
  out->opening_.begin(
      [raw = out.get()](const std::stop_token& stop, const Opening::Say& say) { return raw->open(stop, say); });
  return out;
}

Status PackWorker::open(const std::stop_token& stop, const Opening::Say& say) {
  STOKER_TRY(run_, OpenedRun::open(settings_, *fetcher_, stop, say, [this](const qwen_vl::QwenVl& model) {
               return check_memory(settings_, kHeld, model.config());
             }));
  const std::size_t block = largest_block(settings_.output.pack, run_->model->config());
  MutexLock lock(mu_);
  budget_ = std::make_shared<MemoryBudget>(MemoryShares::of(settings_.speed.memory_limit_bytes, kHeld, block).blocks);
  blocks_ = std::make_shared<BlockPool>(budget_);
  preparer_ = std::make_unique<Preparer>(settings_, run_->dataset, run_->model, nullptr, blocks_, *fetcher_, workers_,
                                         kHeld, clock_);
  return {};
}

Status PackWorker::check_usable() const {
  if (stop_.stop_requested()) return Status(Reason::kStopped, "the worker was closed");
  return opening_.check();
}

Result<std::string> PackWorker::fingerprint() const {
  STOKER_CHECKED(check_usable());
  return run_->fingerprint;
}

Result<PackTask> PackWorker::task_of(std::string_view message, const MakeOptions& options,
                                     const std::stop_token& stop) const {
  STOKER_TRY(const TaskMessage decoded, decode_task(message));
  STOKER_TRY(PackTask task, task_from(decoded, settings_.output, run_->dataset, *run_->model, stop));
  const auto is_member = [&task](std::uint32_t i) { return i < task.members.size(); };
  if (!std::all_of(options.rejected.begin(), options.rejected.end(), is_member) ||
      (options.only && !is_member(*options.only))) {
    return Status(Reason::kPeerMismatch, fmt::format("pack {} has {} members, and not all that are to be given up",
                                                     task.sequence, task.members.size()));
  }
  if (options.only) {
    task.members = {*options.only};
    return task;
  }
  task.rejected.assign(options.rejected.begin(), options.rejected.end());
  std::sort(task.rejected.begin(), task.rejected.end());
  task.rejected.erase(std::unique(task.rejected.begin(), task.rejected.end()), task.rejected.end());
  task.why_rejected = options.why_rejected;
  return task;
}

Result<MadePack> PackWorker::make(std::string_view message, const MakeOptions& options) {
  {
    MutexLock lock(mu_);
    STOKER_CHECKED(check_usable());  // close() waits for those that were let in
    ++told_.n_making;
  }
  Result<MadePack> out = make_now(message, options);
  MutexLock lock(mu_);
  --told_.n_making;
  changed_.notify_all();
  if (!out.ok()) {
    told_.packs_failed += out.status().code() == Code::kCancelled ? 0 : 1;
  } else if (options.only) {
    ++told_.packs_tried;
  } else {
    ++told_.packs_made;
    told_.bytes += static_cast<std::int64_t>(out->n_bytes());
  }
  return out;
}

Result<MadePack> PackWorker::make_now(std::string_view message, const MakeOptions& options) {
  std::stop_source own;  // what is under way for a pack that failed ends too
  const std::stop_callback with_all(stop_.get_token(), [&own] { own.request_stop(); });
  const std::stop_token stop = own.get_token();
  STOKER_TRY(PackTask task, task_of(message, options, stop));
  const auto outcome = std::make_shared<Outcome>();
  Status begun = preparer_->admit(
      std::move(task), [outcome](ReadyPack pack) { outcome->set(std::move(pack)); },
      [outcome](Status failed) { outcome->set(std::move(failed)); }, stop);
  if (!begun.ok()) return begun;
  Result<ReadyPack> got = outcome->wait(stop);
  if (!got.ok()) {
    own.request_stop();
    return std::move(got).status();
  }
  MadePack out;
  if (options.only) return out;
  out.made = encode_made(*got);
  out.batch = std::move(got->batch);
  STOKER_TRY(out.tail, squeeze(out.batch));
  return out;
}

WorkerReport PackWorker::report() const {
  MutexLock lock(mu_);
  WorkerReport out = told_;
  const std::int64_t until = ended_ns_ != 0 ? ended_ns_.load() : clock_.now().count();
  out.pipeline.elapsed_s = to_seconds(Nanos(std::max<std::int64_t>(until - began_.count(), 1)));
  out.pipeline.packs_finished = out.packs_made;
  tell(workers_, *fetcher_, settings_.template_stage.get(), out.pipeline);
  if (preparer_) preparer_->tell(*budget_, out.pipeline);
  return out;
}

void PackWorker::close() {
  MutexLock closing(close_mu_);
  {
    MutexLock lock(mu_);
    stop_.request_stop();
  }
  if (settings_.output.user_code) settings_.output.user_code->cancel();
  opening_.request_stop();
  if (!opening_.check().ok()) fetcher_->stop();  // opening may wait for it; nothing is made yet
  opening_.end();
  if (preparer_) preparer_->close();
  fetcher_->stop();
  workers_.stop();
  if (ended_ns_ == 0) ended_ns_ = clock_.now().count();
  if (blocks_) blocks_->close();
  MutexLock lock(mu_);
  changed_.wait(lock, [this]() STOKER_NO_ANALYSIS { return told_.n_making == 0; });
}

}  // namespace stoker

#include "engine/coordinator.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <tuple>

#include "data/pack.h"
#include "engine/feed.h"
#include "pipeline/pack_job.h"
#include "pipeline/sample_steps.h"
#include "pipeline/task_wire.h"

namespace stoker {
namespace {

/// Everything of a shape; two that differ in nothing here lie alike in their blocks.
auto everything(const PackShape& shape) {
  const auto& [tokens, tail, samples, images, patches, clips, clip_patches, has_weights, has_padded, has_fixed_width,
               patch, temporal_patch, merge, image_id, video_id, pad_id] = shape;
  return std::tie(tokens, tail, samples, images, patches, clips, clip_patches, has_weights, has_padded, has_fixed_width,
                  patch, temporal_patch, merge, image_id, video_id, pad_id);
}

auto planned_counts(const BatchCounts& c) {
  return std::tie(c.step, c.micro_batch, c.micro_batches_in_step, c.step_target_tokens, c.cost);
}

LoaderSettings for_all_ranks(LoaderSettings settings) {
  settings.dp_rank = 0;
  settings.peers = {};
  settings.hand_over = nullptr;
  settings.exchange.kind = ExchangeKind::kNone;
  return settings;
}

Status not_of_task(std::uint64_t sequence, std::string_view why) {
  return {Reason::kPeerMismatch,
          fmt::format("a worker gave for pack {} what is not the result of that pack: {}", sequence, why)};
}

}  // namespace

Coordinator::Coordinator(LoaderSettings settings, std::unique_ptr<Fetcher> fetcher, const Clock& clock)
    : settings_(for_all_ranks(std::move(settings))), clock_(clock), fetcher_(std::move(fetcher)) {}

Result<std::unique_ptr<Coordinator>> Coordinator::create(LoaderSettings settings, const Clock& clock) {
  STOKER_CHECKED(check_run_settings(settings));
  STOKER_TRY(std::unique_ptr<Fetcher> fetcher, Fetcher::create(fetch_settings(settings), clock));
  std::unique_ptr<Coordinator> out(new Coordinator(std::move(settings), std::move(fetcher), clock));
  out->opening_.begin(
      [raw = out.get()](const std::stop_token& stop, const Opening::Say& say) { return raw->open(stop, say); });
  return out;
}

Status Coordinator::open(const std::stop_token& stop, const Opening::Say& say) {
  STOKER_TRY(run_, OpenedRun::open(settings_, *fetcher_, stop, say, [](const auto&) { return Status(); }));
  say("opening the index of lengths");
  known_ = std::make_unique<KnownLengths>(settings_, run_->dataset, run_->model, stop);
  return {};
}

Status Coordinator::check_usable() const {
  if (is_closed_) return Status(Reason::kClosed, "the coordinator is closed");
  return opening_.check();
}

Result<std::string> Coordinator::welcome() const {
  STOKER_CHECKED(check_usable());
  return peers::encode(peers::Welcome{run_->fingerprint, run_->pixels});
}

Result<std::string> Coordinator::fingerprint() const {
  STOKER_CHECKED(check_usable());
  return run_->fingerprint;
}

Status Coordinator::start(const LoaderState& state, const std::vector<std::string>& accepted) {
  STOKER_CHECKED(check_usable());
  MutexLock lock(mu_);
  STOKER_CHECKED(check_usable());  // close() looks for what is begun here
  if (plan_) return Status(Reason::kState, "the run has begun: a coordinator starts once");
  STOKER_TRY(const PlanState cursor, resume_cursor(state, run_->fingerprint, accepted, &run_->dataset));
  first_step_ = cursor.step;
  ledger_.emplace(settings_.bad_samples.ledger);
  late_.emplace(settings_, run_->dataset, 1, "the run");
  out_of_rank_.resize(static_cast<std::size_t>(settings_.dp_size));
  workers_ = std::make_unique<WorkerPool>(settings_.speed.cpu_threads, "stoker-cpu", clock_);
  plan_ = std::make_unique<PlanStage>(
      settings_, run_->dataset, run_->model, known_.get(), *fetcher_, *workers_, run_->fingerprint, cursor,
      PlanStage::Options{.ranks = {0, settings_.dp_size},
                         .keeps_text = false,  // who makes the packs reads it
                         .max_queued = static_cast<std::size_t>(settings_.output.pack.packs_per_step)},
      clock_);
  began_ns_ = clock_.now().count();
  plan_->begin([this](PlanEnd end) {
    MutexLock ended(mu_);
    plan_end_ = std::move(end);
  });
  return {};
}

Result<PlanStage*> Coordinator::started() const {
  STOKER_CHECKED(check_usable());
  MutexLock lock(mu_);
  if (!failed_.ok()) return failed_;
  if (!plan_) return Status(Reason::kState, "the run has not begun");
  return plan_.get();
}

Status Coordinator::want_step(std::int64_t step) {
  STOKER_TRY(PlanStage* const plan, started());
  plan->want_step(step);
  return {};
}

Result<std::optional<TaskInfo>> Coordinator::next_task_within(std::chrono::milliseconds timeout) {
  STOKER_TRY(PlanStage* const plan, started());
  std::optional<PackTask> task = plan->pop_wanted_within(timeout);
  STOKER_CHECKED(check_usable());
  MutexLock lock(mu_);
  if (task) return std::optional<TaskInfo>(hand_out(*std::move(task)));
  const bool is_all_out = plan_end_ && static_cast<std::uint64_t>(told_.packs_handed_out) == plan_end_->n_packs;
  if (!is_all_out) return std::optional<TaskInfo>();
  if (plan_end_->status.ok()) {
    is_at_end_ = true;
    return std::optional<TaskInfo>();
  }
  if (!out_.empty()) return std::optional<TaskInfo>();  // what was planned before is delivered
  STOKER_CHECKED(write_left_over());
  failed_ = plan_end_->status;
  return failed_;
}

TaskInfo Coordinator::hand_out(PackTask task) {
  TaskInfo info{.sequence = task.sequence,
                .rank = task.rank,
                .step = task.counts.step,
                .micro_batch = task.counts.micro_batch,
                .micro_batches_in_step = task.counts.micro_batches_in_step,
                .is_last_of_step = task.is_last_of_step,
                .n_samples = static_cast<std::int64_t>(task.members.size()),
                .cost = task.counts.cost,
                .message = encode_task(message_of(task))};
  Book book{.rank = task.rank,
            .counts = task.counts,
            .is_last_of_step = task.is_last_of_step,
            .state_after = std::move(task.state_after),
            .planned = shape_of(task, settings_.output.pack, *run_->model),
            .planned_around = std::move(task.planned_around)};
  for (std::size_t i = 0; i < task.members.size(); ++i) {
    book.members.emplace_back(task.sample(i).order_index, task.sample(i).entry);
  }
  std::sort(book.members.begin(), book.members.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  info.n_bytes = PackLayout(book.planned).n_bytes;
  out_of_rank_[static_cast<std::size_t>(task.rank)].push_back(task.sequence);
  out_.emplace(task.sequence, std::move(book));
  ++told_.packs_handed_out;
  told_.message_bytes += static_cast<std::int64_t>(info.message.size());
  return info;
}

Status Coordinator::write(const std::vector<LedgerEntry>& entries) {
  for (const auto& [reason, n] : counted(entries)) told_.bad[reason] += n;
  if (entries.empty()) return {};
  Status status = ledger_->append(entries, run_->dataset);
  if (!status.ok()) failed_ = status;
  return status;
}

/// The lines of samples that turned out bad. @return PEER_MISMATCH if the message is not of this pack.
Result<std::vector<LedgerEntry>> Coordinator::found_late(const Book& book, const MadeMessage& made) const {
  const std::uint64_t sequence = made.pack.sequence;
  const peers::Delivery& delivery = made.pack.delivery;
  const Batch& batch = delivery.batch;
  if (everything(batch.planned) != everything(book.planned)) return not_of_task(sequence, "it was planned otherwise");
  const BatchCounts& counts = batch.counts;
  if (planned_counts(counts) != planned_counts(book.counts) || counts.tokens != batch.shape.tokens ||
      counts.patches != batch.shape.patches || counts.video_patches != batch.shape.clip_patches ||
      counts.target_tokens < 0 || counts.target_tokens > counts.tokens || counts.pad_tokens < 0 ||
      counts.pad_tokens > counts.tokens) {
    return not_of_task(sequence, "its counts are of another one");
  }
  const auto n_late = static_cast<std::int64_t>(made.found_late.size());
  if (delivery.n_samples < 0 || delivery.n_samples + n_late != static_cast<std::int64_t>(book.members.size())) {
    return not_of_task(sequence, "it has another number of samples");
  }
  std::vector<LedgerEntry> entries;
  for (const LateSample& late : made.found_late) {
    const auto at = std::lower_bound(book.members.begin(), book.members.end(), late.order_index,
                                     [](const auto& member, std::uint64_t index) { return member.first < index; });
    if (at == book.members.end() || at->first != late.order_index) {
      return not_of_task(sequence, fmt::format("sample {} of the order is not one of its own", late.order_index));
    }
    entries.push_back({late.order_index, at->second, late.media, late.status});
  }
  return entries;
}

Result<std::string> Coordinator::deliver(std::uint64_t sequence, std::string_view bytes) {
  STOKER_CHECKED(started().status());
  STOKER_TRY(MadeMessage made, decode_made(bytes));
  if (made.pack.sequence != sequence) return not_of_task(sequence, fmt::format("it is pack {}", made.pack.sequence));
  MutexLock lock(mu_);
  const auto found = out_.find(sequence);
  if (found == out_.end()) {
    return Status(Reason::kInternal, fmt::format("pack {} is not being made, or was delivered before", sequence));
  }
  Book& book = found->second;
  std::deque<std::uint64_t>& of_rank = out_of_rank_[static_cast<std::size_t>(book.rank)];
  if (of_rank.front() != sequence) {
    return Status(Reason::kInternal, fmt::format("pack {} of rank {} was delivered before its pack {}", sequence,
                                                 book.rank, of_rank.front()));
  }
  STOKER_TRY(std::vector<LedgerEntry> late, found_late(book, made));
  peers::Delivery& delivery = made.pack.delivery;
  Status verdict = late_->count(late, delivery.n_samples);
  std::vector<LedgerEntry> ledger = std::move(book.planned_around);
  std::move(late.begin(), late.end(), std::back_inserter(ledger));
  STOKER_CHECKED(write(ledger));
  for (const Hash128& key : made.stale) known_->forget_media(key);
  if (!verdict.ok()) {
    failed_ = verdict;
    return verdict;
  }
  delivery.is_last_of_step = book.is_last_of_step;
  delivery.state_after = std::move(book.state_after);
  delivery.bad = counted(ledger);
  const BatchCounts& counts = delivery.batch.counts;
  made.pack.sequence = static_cast<std::uint64_t>(
      (counts.step - static_cast<std::int64_t>(first_step_)) * counts.micro_batches_in_step + counts.micro_batch);
  ++told_.packs_delivered;
  told_.samples += delivery.n_samples;
  told_.tokens += counts.tokens - counts.pad_tokens;
  told_.target_tokens += counts.target_tokens;
  told_.patches += counts.patches;
  told_.video_patches += counts.video_patches;
  told_.bytes += static_cast<std::int64_t>(PackLayout(delivery.batch.shape).n_bytes);
  of_rank.pop_front();
  out_.erase(found);
  return peers::encode(made.pack);
}

void Coordinator::forget_lengths(std::uint64_t sequence) {
  MutexLock lock(mu_);
  const auto found = out_.find(sequence);
  if (found == out_.end()) return;
  for (const auto& [order_index, entry] : found->second.members) known_->forget_text(entry);
}

Status Coordinator::write_left_over() { return write(std::exchange(plan_end_->left_over, {})); }

Result<std::string> Coordinator::end() {
  STOKER_CHECKED(started().status());
  MutexLock lock(mu_);
  if (!is_at_end_ || !out_.empty()) return Status(Reason::kState, "packs of the run are not delivered yet");
  const peers::BadCounts bad = counted(plan_end_->left_over);
  STOKER_CHECKED(write_left_over());
  return peers::encode(peers::End{Status(), bad});
}

Result<SampleOrigin> Coordinator::describe(std::int64_t sample_id) const {
  STOKER_CHECKED(check_usable());
  return origin_of(sample_id, run_->dataset);
}

CoordinatorReport Coordinator::report() const {
  MutexLock lock(mu_);
  CoordinatorReport out = told_;
  if (!plan_) return out;
  PipelineSnapshot& s = out.pipeline.emplace();
  const std::int64_t until = ended_ns_ != 0 ? ended_ns_.load() : clock_.now().count();
  s.elapsed_s = to_seconds(Nanos(std::max<std::int64_t>(until - began_ns_, 1)));
  plan_->tell(s);
  tell(*workers_, *fetcher_, settings_.template_stage.get(), s);
  return out;
}

void Coordinator::close() {
  MutexLock closing(close_mu_);
  if (is_closed_.exchange(true)) return;
  opening_.request_stop();
  if (settings_.output.user_code) settings_.output.user_code->cancel();
  fetcher_->stop();
  opening_.end();
  PlanStage* plan = nullptr;
  WorkerPool* workers = nullptr;
  {
    MutexLock lock(mu_);
    plan = plan_.get();
    workers = workers_.get();
  }
  if (plan != nullptr) plan->stop();
  if (workers != nullptr) workers->stop();
  ended_ns_ = clock_.now().count();
}

}  // namespace stoker

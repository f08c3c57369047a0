#include "engine/loader.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/log.h"
#include "engine/hand_over.h"
#include "engine/handed_feed.h"
#include "engine/opened_run.h"
#include "engine/peer_feed.h"
#include "engine/pipeline_feed.h"
#include "engine/run_fingerprint.h"
#include "exec/cpu.h"
#include "pipeline/sample_steps.h"
#include "plan/padding.h"
#include "plan/step.h"

namespace stoker {
namespace {

constexpr std::chrono::seconds kTellOfStallAfter{5};
constexpr double kNameLimit_s = 60;       // how long an earlier leader may take to go
constexpr std::size_t kHistory = 64 + 1;  // states after the last 64 steps, and the one before them

Nanos from_seconds(double seconds) { return std::chrono::duration_cast<Nanos>(std::chrono::duration<double>(seconds)); }

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "this host";
}

}  // namespace

Loader::Loader(LoaderSettings settings, const Clock& clock)
    : settings_(std::move(settings)), clock_(clock), pid_(getpid()) {}

Result<std::unique_ptr<Loader>> Loader::create(LoaderSettings settings, const Clock& clock) {
  STOKER_CHECKED(check_run_settings(settings));
  std::unique_ptr<Loader> loader(new Loader(std::move(settings), clock));
  if (loader->settings_.peers.rank == 0 && !loader->settings_.hand_over) {
    STOKER_TRY(loader->fetcher_, Fetcher::create(fetch_settings(loader->settings_), clock));
  }
  Loader* const raw = loader.get();
  loader->opening_.begin([raw](const std::stop_token& stop, const Opening::Say& say) { return raw->open(stop, say); });
  return loader;
}

Status Loader::open(const std::stop_token& stop, const Opening::Say& say) {
  Status status = settings_.hand_over         ? open_handed(stop, say)
                  : settings_.peers.rank == 0 ? open_engine(stop, say)
                                              : open_follower(stop, say);
  if (leader_ && !status.ok() && status.code() != Code::kCancelled) leader_->end(status);
  return status;
}

Status Loader::open_engine(const std::stop_token& stop, const Opening::Say& say) {
  if (settings_.peers.count > 1) {
    const auto limit = std::chrono::duration_cast<Nanos>(
        std::chrono::duration<double>(std::min(settings_.outage_limit_s, kNameLimit_s)));
    STOKER_TRY(leader_, peers::Leader::listen(place(), limit, say, stop, clock_));
  }
  const auto tell = [&](std::string_view line) {
    say(line);
    if (leader_) leader_->tell(line);
  };
  if (settings_.dp_size > 1) {
    STOKER_TRY(service_, start_service(settings_.exchange));
  }
  const auto check = [this](const qwen_vl::QwenVl& model) {
    return check_memory(settings_, MemoryShares::held_by_trainer(settings_), model.config());
  };
  STOKER_TRY(OpenedRun run, OpenedRun::open(settings_, *fetcher_, stop, tell, check));
  model_ = std::move(run.model);
  dataset_ = std::move(run.dataset);
  fingerprint_ = std::move(run.fingerprint);
  pixels_ = run.pixels;
  tell("opening the index of lengths");
  known_ = std::make_unique<KnownLengths>(settings_, *dataset_, model_, stop);
  if (leader_) leader_->welcome({fingerprint_, pixels_});
  return {};
}

Status Loader::open_handed(const std::stop_token& stop, const Opening::Say& say) {
  while (!stop.stop_requested()) {
    STOKER_TRY(std::optional<peers::Welcome> welcome,
               settings_.hand_over->welcome_within(std::chrono::milliseconds(100)));
    if (welcome) {
      fingerprint_ = std::move(welcome->fingerprint);
      pixels_ = welcome->pixels;
      return {};
    }
    say(settings_.hand_over->line());
  }
  return Status(Reason::kStopped, "the loader was closed");
}

Status Loader::open_follower(const std::stop_token& stop, const Opening::Say& say) {
  follower_ = std::make_shared<peers::Follower>(
      place(), std::chrono::duration_cast<Nanos>(std::chrono::duration<double>(settings_.outage_limit_s)), clock_);
  while (!stop.stop_requested()) {
    STOKER_TRY(std::optional<peers::Welcome> welcome, follower_->welcome_within(std::chrono::milliseconds(100)));
    if (welcome) {
      fingerprint_ = std::move(welcome->fingerprint);
      pixels_ = welcome->pixels;
      return {};
    }
    say(follower_->progress());
  }
  return Status(Reason::kStopped, "the loader was closed");
}

/// What peers must have in common is what the fingerprint is made of, before anything is opened, and who they are.
peers::Place Loader::place() const {
  std::string manifests;
  for (const DataSettings& data : settings_.output.data) manifests += data.manifest + '\n' + data.media_root + '\n';
  const std::string settings = fmt::format("dp_size={} peer_count={} ", settings_.dp_size, settings_.peers.count) +
                               run_fingerprint(settings_.output, manifests, settings_.output.model, nullptr);
  peers::Place place =
      peers::Place::make(settings_.peers.job, settings_.dp_rank, settings_.peers.rank, settings_.peers.count, settings);
  place.differing = differing_setting;
  return place;
}

Result<bool> Loader::open_within(std::chrono::milliseconds timeout) {
  STOKER_CHECKED(check_usable());
  const Nanos began = clock_.now();
  Result<bool> is_open = opening_.within(timeout);
  open_wait_ += clock_.now() - began;
  return is_open;
}

Status Loader::check_usable() const {
  if (getpid() != pid_) {
    return Status(
        Reason::kForked,
        fmt::format("this loader belongs to process {}; after a fork make a new one (a torch DataLoader with workers "
                    "forks: iterate the loader directly)",
                    pid_));
  }
  if (is_closed_) return Status(Reason::kClosed, "the loader is closed");
  return {};
}

Status Loader::check_open() const {
  return opening_.check().ok() ? Status() : Status(Reason::kState, "the loader is not open");
}

Status Loader::start() {
  STOKER_CHECKED(opening_.check());
  ledger_ = std::make_unique<Ledger>(settings_.bad_samples.ledger);
  MutexLock lock(life_mu_);
  STOKER_CHECKED(check_usable());
  if (settings_.hand_over) {
    feed_ = std::make_unique<HandedFeed>(settings_.hand_over, with_cursor(cursor_));
  } else if (follower_) {
    feed_ = std::make_unique<FollowerFeed>(settings_, follower_, cursor_);
  } else {
    auto engine =
        std::make_unique<PipelineFeed>(settings_, *dataset_,
                                       std::make_unique<Pipeline>(settings_, *dataset_, model_, known_.get(),
                                                                  std::move(fetcher_), fingerprint_, cursor_, clock_));
    if (leader_) {
      feed_ = std::make_unique<LeaderFeed>(settings_, std::move(engine), leader_, cursor_, clock_);
    } else {
      feed_ = std::move(engine);
    }
  }
  history_.push_back(cursor_);
  has_started_ = true;
  return {};
}

Result<std::optional<Batch>> Loader::next_within(std::chrono::milliseconds timeout) {
  STOKER_CHECKED(check_usable());
  if (!failed_.ok()) return failed_;
  if (!has_started_) STOKER_CHECKED(start());
  auto batch = take_within(timeout);
  if (!batch.ok() && batch.status().code() != Code::kCancelled) {
    failed_ = batch.status();
    feed_->end_with(failed_);
  }
  return batch;
}

Result<std::optional<Batch>> Loader::take_within(std::chrono::milliseconds timeout) {
  if (!is_in_next_) {
    MutexLock lock(told_mu_);
    meter_.next_begins(is_step_start_, clock_.now() - std::exchange(open_wait_, Nanos{0}));
    is_in_next_ = true;
    waited_ = Nanos{0};
    next_warning_ = from_seconds(settings_.stall_warning_s);
    if (is_step_start_) feed_->want_step(static_cast<std::int64_t>(cursor_.step));
  }
  const Nanos began = clock_.now();
  auto taken = feed_->take_within(timeout);
  if (!taken.ok() || !*taken) {
    STOKER_CHECKED(write_left_over());
    if (!taken.ok()) return std::move(taken).status();
    if (!feed_->is_at_end()) STOKER_CHECKED(check_stall(clock_.now() - began));
    return std::optional<Batch>();
  }
  stalled_since_.reset();
  Feed::Item& item = **taken;
  if (!item.ledger.empty()) STOKER_CHECKED(ledger_->append(item.ledger, *dataset_));
  {
    MutexLock lock(told_mu_);
    for (const auto& [reason, n] : item.delivery.bad) delivered_.bad[reason] += n;
  }
  STOKER_CHECKED(std::move(item.verdict));
  STOKER_CHECKED(account(item.delivery));
  is_in_next_ = false;
  return std::optional<Batch>(std::move(item.delivery.batch));
}

/// The others of the job wait for this rank in their next collective, whose watchdog would end them with another story.
Status Loader::check_stall(Nanos waited) {
  STOKER_CHECKED(check_memory_stall());
  waited_ += waited;
  const bool is_over = settings_.stall_limit_s > 0 && waited_ >= from_seconds(settings_.stall_limit_s);
  if (!is_over && (settings_.stall_warning_s <= 0 || waited_ < next_warning_)) return {};
  next_warning_ = 2 * waited_;
  std::string waits_for = feed_->waits_for();
  std::string line = fmt::format("rank {} of {} on {} has waited {:.0f} s for its next batch, of step {}: {}",
                                 settings_.dp_rank, settings_.dp_size, host_name(), to_seconds(waited_), cursor_.step,
                                 waits_for.empty() ? "nobody says for what" : waits_for);
  if (is_over) return Status(Reason::kDataStall, line + "; stall_limit_s ends the run here, resume from its state");
  log(LogLevel::kWarning, line);
  return {};
}

/// All memory may be in batches that the trainer holds, or a peer. Another thread of it may give some back, so that is
/// said, and is an error only when it has lasted as long as an outage may.
Status Loader::check_memory_stall() {
  const std::optional<Stall> stall = feed_->stall();
  if (!stall) {
    stalled_since_.reset();
    return {};
  }
  const Nanos now = clock_.now();
  if (!stalled_since_) stalled_since_ = now;
  const Nanos lasted = now - *stalled_since_;
  if (to_seconds(lasted) >= settings_.outage_limit_s && stall->reason != Reason::kNone)
    return Status(stall->reason, stall->sentence);
  if (!is_stall_told_ && lasted >= kTellOfStallAfter) {
    is_stall_told_ = true;
    log(LogLevel::kWarning, stall->sentence);
  }
  return {};
}

Status Loader::write_left_over() {
  const Feed::LeftOver left = feed_->take_left_over();
  if (!left.ledger.empty()) STOKER_CHECKED(ledger_->append(left.ledger, *dataset_));
  MutexLock lock(told_mu_);
  for (const auto& [reason, n] : left.bad) delivered_.bad[reason] += n;
  return {};
}

Status Loader::account(const peers::Delivery& delivery) {
  const Batch& batch = delivery.batch;
  MutexLock lock(told_mu_);
  meter_.next_ends(clock_.now());
  ++delivered_.batches;
  delivered_.samples += delivery.n_samples;
  delivered_.tokens += batch.counts.tokens - batch.counts.pad_tokens;
  const PackSettings& pack_settings = settings_.output.pack;
  room_tokens_ += pack_settings.form == PackForm::kPacked
                      ? pack_settings.tokens_per_pack
                      : batch.shape.samples * row_tokens(pack_settings, batch.max_seqlen);
  delivered_.target_tokens += batch.counts.target_tokens;
  delivered_.patches += batch.counts.patches + batch.counts.video_patches;
  delivered_.bytes += static_cast<std::int64_t>(PackLayout(batch.shape).n_bytes);
  is_step_start_ = delivery.is_last_of_step;
  if (delivery.is_last_of_step) {
    ++delivered_.steps;
    cursor_ = delivery.state_after;
    history_.push_back(cursor_);
    if (history_.size() > kHistory) history_.pop_front();
  }
  return {};
}

LoaderState Loader::with_cursor(const PlanState& cursor) const {
  return {.fingerprint = fingerprint_, .cursor = cursor, .dp_size = settings_.dp_size};
}

Result<LoaderState> Loader::state(bool* is_inside_step) const {
  STOKER_CHECKED(check_open());
  if (is_inside_step != nullptr) *is_inside_step = !is_step_start_;
  return with_cursor(cursor_);
}

Result<LoaderState> Loader::state_after(std::int64_t steps) const {
  for (const PlanState& cursor : history_) {
    if (static_cast<std::int64_t>(cursor.step) == steps) return with_cursor(cursor);
  }
  if (static_cast<std::int64_t>(cursor_.step) == steps) return with_cursor(cursor_);  // nothing has begun
  return Status(Reason::kState, fmt::format("step {} is not among the last {} that were delivered (now at step {})",
                                            steps, kHistory - 1, cursor_.step));
}

Status Loader::load_state(const LoaderState& state, const std::vector<std::string>& accepted) {
  STOKER_CHECKED(check_usable());
  if (has_started_)
    return Status(Reason::kState, "the iteration has begun: load a state into a new loader before its first batch");
  STOKER_TRY(cursor_, resume_cursor(state, fingerprint_, accepted, dataset_ ? &*dataset_ : nullptr));
  return {};
}

Result<SampleOrigin> Loader::describe(std::int64_t sample_id) const {
  STOKER_TRY(const Dataset* dataset, manifests());
  return origin_of(sample_id, *dataset);
}

Result<const Dataset*> Loader::manifests() const {
  STOKER_CHECKED(check_open());
  if (dataset_) return &*dataset_;
  if (settings_.hand_over) return Status(Reason::kState, "batches come from elsewhere: ask there for the origin");
  MutexLock lock(describe_mu_);
  if (!described_) {
    STOKER_TRY(const std::unique_ptr<Fetcher> fetcher, Fetcher::create(fetch_settings(settings_), clock_));
    STOKER_TRY(described_, Dataset::open(settings_, *fetcher, opening_.stop_token(), [](std::string_view) {}));
  }
  return &*described_;
}

LoaderReport Loader::report() const {
  LoaderReport out;
  std::int64_t room_tokens = 0;
  {
    MutexLock lock(told_mu_);
    out = delivered_;
    room_tokens = room_tokens_;
    out.wait = meter_.totals();
  }
  {
    MutexLock lock(life_mu_);
    if (feed_) {
      out.pipeline = feed_->snapshot();
      out.peers = feed_->peers();
    }
  }
  if (settings_.output.user_code && !settings_.hand_over) {
    const StageClock& clock = settings_.output.user_code->clock();
    out.user_code = {.busy_s = static_cast<double>(clock.busy_ns.get()) * 1e-9,
                     .wait_s = static_cast<double>(clock.wait_in_ns.get()) * 1e-9,
                     .n_calls = clock.items.get()};
  }
  if (out.batches > 0) out.fill = static_cast<double>(out.tokens) / static_cast<double>(room_tokens);
  out.cpu_threads = settings_.speed.cpu_threads;
  out.fetch_concurrency = settings_.speed.fetch_concurrency;
  out.prefetch_steps = settings_.speed.prefetch_steps;
  return out;
}

void Loader::add_wait(double seconds) {
  MutexLock lock(told_mu_);
  meter_.add_wait(std::chrono::duration_cast<Nanos>(std::chrono::duration<double>(seconds)));
}

void Loader::close() {
  if (getpid() != pid_) return;
  is_closed_ = true;
  opening_.request_stop();
  if (settings_.output.user_code) settings_.output.user_code->cancel();
  MutexLock lock(life_mu_);
  if (fetcher_) fetcher_->stop();
  opening_.end();
  if (feed_) feed_->stop();  // not destroyed: the trainer's thread may be in it
  if (leader_) leader_->close();
  if (follower_) follower_->close();
  if (settings_.hand_over) settings_.hand_over->close();
  service_.reset();
}

Loader::~Loader() {
  if (getpid() != pid_) {
    // A forked child has none of the threads: joining them would hang, so what they belong to is left alone.
    (void)feed_.release();
    (void)known_.release();
    if (leader_) (void)new std::shared_ptr(leader_);
    if (follower_) (void)new std::shared_ptr(follower_);
    (void)fetcher_.release();
    (void)new std::shared_ptr<TcpServer>(std::move(service_));
    opening_.abandon();
    return;
  }
  close();
}

}  // namespace stoker

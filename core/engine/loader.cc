#include "engine/loader.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/hash.h"
#include "base/log.h"
#include "engine/hand_over.h"
#include "engine/handed_feed.h"
#include "engine/peer_feed.h"
#include "engine/pipeline_feed.h"
#include "exec/cpu.h"
#include "pipeline/sample_steps.h"
#include "plan/padding.h"
#include "plan/step.h"
#include "source/url.h"

namespace stoker {
namespace {

constexpr std::chrono::seconds kTellOfStallAfter{5};
constexpr double kNameLimit_s = 60;       // how long an earlier leader may take to go
constexpr std::size_t kHistory = 64 + 1;  // states after the last 64 steps, and the one before them

Status check_memory(const LoaderSettings& settings, const qwen_vl::ProcessorConfig& config) {
  const std::size_t block = largest_block(settings.output.pack, config);
  const int held = settings.output.pack.packs_per_step / settings.dp_size;
  const std::size_t needed = MemoryShares::least_blocks(settings, block) + MemoryShares::kLeastEncoded;
  if (needed <= settings.speed.memory_limit_bytes) return {};
  return Status(Reason::kMemoryLimit,
                fmt::format("a trainer holds the {} micro-batches of a step while it asks for more, and a pack of {} "
                            "tokens takes up to {} MB: "
                            "speed.memory_limit must be at least {} MB for this rank, it is {} MB",
                            held, settings.output.pack.tokens_per_pack, block >> 20, (needed >> 20) + 1,
                            settings.speed.memory_limit_bytes >> 20));
}

Status check_settings(const LoaderSettings& s) {
  if (s.output.data.empty()) return Status(Reason::kSettings, "data: no manifest is given");
  if (s.output.pack.tokens_per_pack < 16) return Status(Reason::kSettings, "pack.tokens_per_pack must be at least 16");
  STOKER_CHECKED(check_pack_settings(s.output.pack));
  if (s.output.window_samples < 1) return Status(Reason::kSettings, "window_samples must be at least 1");
  if (s.dp_rank < 0 || s.dp_rank >= s.dp_size) {
    return Status(Reason::kSettings, fmt::format("dp_rank {} is not in [0, dp_size = {})", s.dp_rank, s.dp_size));
  }
  if (s.speed.cpu_threads < 1 || s.speed.fetch_concurrency < 1 || s.speed.prefetch_steps < 0) {
    return Status(Reason::kSettings,
                  "speed: cpu_threads and fetch_concurrency must be at least 1, prefetch_steps at least 0");
  }
  if (s.peers.rank < 0 || s.peers.rank >= s.peers.count) {
    return Status(Reason::kSettings,
                  fmt::format("peer_rank {} is not in [0, peer_count = {})", s.peers.rank, s.peers.count));
  }
  return check_dp_size(s.output.pack.packs_per_step, s.dp_size);
}

peers::PixelFacts pixels_of(const qwen_vl::QwenVl& model) {
  const qwen_vl::ProcessorConfig& image = model.config();
  const qwen_vl::ClipConfig& clip = model.clip_config();
  return {.image_mean = image.mean,
          .image_std = image.std,
          .clip_mean = clip.mean,
          .clip_std = clip.std,
          .image_rescale = image.rescale,
          .clip_rescale = clip.rescale,
          .patch = image.patch,
          .merge = image.merge,
          .temporal_patch = image.temporal_patch};
}

Nanos from_seconds(double seconds) { return std::chrono::duration_cast<Nanos>(std::chrono::duration<double>(seconds)); }

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "this host";
}

}  // namespace

Loader::Loader(LoaderSettings settings, const Clock& clock)
    : settings_(std::move(settings)), clock_(clock), pid_(getpid()) {}

Result<std::unique_ptr<Loader>> Loader::create(LoaderSettings settings, const Clock& clock) {
  STOKER_CHECKED(check_settings(settings));
  std::unique_ptr<Loader> loader(new Loader(std::move(settings), clock));
  if (loader->settings_.peers.rank == 0 && !loader->settings_.hand_over) {
    STOKER_TRY(loader->fetcher_, Fetcher::create(fetch_settings(loader->settings_), clock));
  }
  Loader* const raw = loader.get();
  loader->opening_ = std::jthread([raw](std::stop_token stop) { raw->open(std::move(stop)); });
  return loader;
}

void Loader::open(std::stop_token stop) {
  become_background_thread("stoker-open");
  auto say = [this](std::string_view line) {
    MutexLock lock(mu_);
    progress_ = line;
  };
  Status status = settings_.hand_over         ? open_handed(stop, say)
                  : settings_.peers.rank == 0 ? open_engine(stop, say)
                                              : open_follower(stop, say);
  if (leader_ && !status.ok() && status.code() != Code::kCancelled) leader_->end(status);
  MutexLock lock(mu_);
  open_status_ = std::move(status);
  progress_.clear();
  is_opened_ = true;
  opened_changed_.notify_all();
}

Status Loader::open_engine(const std::stop_token& stop, const std::function<void(std::string_view)>& say) {
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
  tell("reading the model's folder");
  STOKER_TRY(model_, load_model(settings_));
  STOKER_CHECKED(check_memory(settings_, model_->config()));
  if (!settings_.output.cost && !model_->cost()) {
    log(LogLevel::kInfo, fmt::format("{}/config.json does not say how large the model is: packs are balanced by the "
                                     "costs of Qwen3-VL-8B, unless pack.cost_file has others",
                                     settings_.output.model));
  }
  STOKER_TRY(dataset_, Dataset::open(settings_, *fetcher_, stop, tell));
  STOKER_CHECKED(check_data_size(dataset_->rows_per_pass(), settings_.output.pack.packs_per_step,
                                 settings_.output.epochs.has_value()));
  fingerprint_ = make_fingerprint(dataset_->fingerprint(), model_->fingerprint());
  pixels_ = pixels_of(*model_);
  tell("opening the index of lengths");
  known_ = std::make_unique<KnownLengths>(settings_, *dataset_, model_, stop);
  if (leader_) leader_->welcome({fingerprint_, pixels_});
  return {};
}

Status Loader::open_handed(const std::stop_token& stop, const std::function<void(std::string_view)>& say) {
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

Status Loader::open_follower(const std::stop_token& stop, const std::function<void(std::string_view)>& say) {
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
                               make_fingerprint(manifests, settings_.output.model);
  peers::Place place =
      peers::Place::make(settings_.peers.job, settings_.dp_rank, settings_.peers.rank, settings_.peers.count, settings);
  place.differing = differing_setting;
  return place;
}

std::string Loader::make_fingerprint(const std::string& data, const std::string& model) const {
  const OutputSettings& o = settings_.output;
  std::string out;
  auto add = [&out](std::string_view name, std::initializer_list<std::string> values) {
    Digest digest;
    for (const std::string& value : values) digest.add(value);
    out += fmt::format("{}{}={}", out.empty() ? "" : " ", name, digest.hex().substr(0, 8));
  };
  add("data", {data});
  Digest rows;
  for (const DataSettings& entry : o.data) {
    rows.add(stoker::describe(entry.rows));
    rows.add_int(static_cast<std::int64_t>(entry.max_row_bytes));
  }
  add("rows", {rows.hex()});
  if (std::any_of(o.data.begin(), o.data.end(), [](const DataSettings& d) { return d.share != Share(); })) {
    Digest shares;
    for (const DataSettings& entry : o.data) {
      shares.add_int(static_cast<std::int64_t>(entry.share.kind));
      shares.add_int(static_cast<std::int64_t>(entry.share.value));
    }
    add("mixture", {shares.hex()});
  }
  add("model", {model});
  add("seed", {std::to_string(o.seed)});
  add("shuffle", {std::to_string(static_cast<int>(o.shuffle))});
  if (o.shuffle == Shuffle::kChunked) {
    add("chunks", {std::to_string(o.chunks.chunk_bytes), std::to_string(o.chunks.chunks_per_group)});
  }
  if (o.split) {
    add("split", {o.split->key, std::to_string(o.split->held_out_millionths), std::to_string(o.uses_held_out)});
  }
  add("epochs", {o.epochs ? std::to_string(*o.epochs) : "endless"});
  add("window_samples", {std::to_string(o.window_samples)});
  const PackSettings& pack = o.pack;
  Digest packing;
  for (const std::string& value : {std::to_string(pack.tokens_per_pack), std::to_string(pack.packs_per_step),
                                   std::to_string(static_cast<int>(o.over_long))}) {
    packing.add(value);
  }
  // Settings that came later count where they change something.
  const std::pair<const char*, std::int64_t> later[] = {{"form", static_cast<std::int64_t>(pack.form)},
                                                        {"samples", pack.samples_per_pack - 1},
                                                        {"balance", static_cast<std::int64_t>(pack.balance)},
                                                        {"images", pack.max_images},
                                                        {"patches", pack.max_patches},
                                                        {"align", pack.align_samples_to - 1},
                                                        {"pad", pack.pad_to - 1},
                                                        {"uniform", static_cast<std::int64_t>(pack.vision_uniform)}};
  for (const auto& [name, value] : later) {
    if (value != 0) packing.add(fmt::format("{}={}", name, value));
  }
  out += fmt::format(" pack={}", packing.hex().substr(0, 8));
  if (const CostModel cost = model_ ? cost_of(o, *model_) : o.cost.value_or(CostModel{}); cost != CostModel{}) {
    add("cost", {fmt::format("{} {} {} {}", cost.language_per_token, cost.language_per_token_pair,
                             cost.vision_per_patch, cost.vision_per_patch_pair)});
  }
  add("labels", {std::to_string(static_cast<int>(o.labels.train_on)),
                 std::to_string(static_cast<int>(o.labels.end_of_turn)), std::to_string(o.labels.roles)});
  if (o.box_form) add("box_text", {std::to_string(static_cast<int>(*o.box_form))});
  if (o.labels.weights == qwen_vl::LossWeights::kDeliver) add("loss_weights", {"deliver"});
  add("reference", {o.profile.facts()});
  add("media", {std::to_string(o.image.is_exif_applied), std::to_string(static_cast<int>(o.image.alpha)),
                std::to_string(static_cast<int>(o.image.grey16)), std::to_string(o.image.limits.max_pixels),
                std::to_string(o.image.limits.max_scans), std::to_string(o.image.is_end_optional),
                std::to_string(o.image.is_truncated_used), std::to_string(static_cast<int>(o.row_sizes))});
  if (o.changed_media != ChangedMedia::kAccept)
    add("media_changed", {std::to_string(static_cast<int>(o.changed_media))});
  if (o.user_code) add("user_code", {o.user_code->identity()});
  add("engine", {"1"});  // counts up with every change of order, packing or arithmetic
  return out;
}

Result<bool> Loader::open_within(std::chrono::milliseconds timeout) {
  STOKER_CHECKED(check_usable());
  const Nanos began = clock_.now();
  MutexLock lock(mu_);
  opened_changed_.wait_for(lock, timeout, [&]() STOKER_NO_ANALYSIS { return is_opened_; });
  open_wait_ += clock_.now() - began;
  if (is_opened_ && !open_status_.ok()) return open_status_;
  return is_opened_;
}

std::string Loader::progress() const {
  MutexLock lock(mu_);
  return progress_;
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

Status Loader::start() {
  {
    MutexLock lock(mu_);
    if (!is_opened_) return Status(Reason::kInternal, "started before it was open");
    if (!open_status_.ok()) return open_status_;
  }
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
  {
    MutexLock lock(mu_);
    if (!is_opened_ || !open_status_.ok()) return Status(Reason::kState, "the loader is not open");
  }
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
  STOKER_TRY(ResumePoint point, resume_point(state, fingerprint_, accepted));
  if (dataset_ && state.cursor.window >= dataset_->n_windows()) {
    return Status(Reason::kState,
                  fmt::format("the state names window {}, past the end of the data", state.cursor.window));
  }
  if (!point.warning.empty()) log(LogLevel::kWarning, point.warning);
  cursor_ = std::move(point.cursor);
  return {};
}

Result<SampleOrigin> Loader::describe(std::int64_t sample_id) const {
  if (sample_id < 0) {
    return Status(Reason::kSettings, fmt::format("there is no sample {} in the order (-1 marks a dummy)", sample_id));
  }
  STOKER_TRY(const Dataset* dataset, manifests());
  STOKER_TRY(const OrderEntry entry, dataset->at(static_cast<std::uint64_t>(sample_id)));
  const Manifest& manifest = dataset->manifest(entry.source);
  const RowLocation at = manifest.row(entry.row);
  SampleOrigin origin{.pass = entry.pass,
                      .manifest = dataset->name(entry.source),
                      .line = at.line,
                      .byte_offset = at.offset,
                      .media = {}};
  std::string buffer;
  STOKER_TRY(const std::string_view line, manifest.read(entry.row, buffer));
  if (auto row = parse_row(line, dataset->rows(entry.source)); row.ok()) {
    for (const MediaRef& media : row->media) origin.media.push_back(shown_media(media.reference));
  }
  return origin;
}

Result<const Dataset*> Loader::manifests() const {
  {
    MutexLock lock(mu_);
    if (!is_opened_ || !open_status_.ok()) return Status(Reason::kState, "the loader is not open");
  }
  if (dataset_) return &*dataset_;
  if (settings_.hand_over) return Status(Reason::kState, "batches come from elsewhere: ask there for the origin");
  MutexLock lock(describe_mu_);
  if (!described_) {
    STOKER_TRY(const std::unique_ptr<Fetcher> fetcher, Fetcher::create(fetch_settings(settings_), clock_));
    STOKER_TRY(described_, Dataset::open(settings_, *fetcher, opening_.get_stop_token(), [](std::string_view) {}));
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
  if (opening_.joinable()) opening_.join();
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
    if (opening_.joinable()) opening_.detach();
    return;
  }
  close();
}

}  // namespace stoker

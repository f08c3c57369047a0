#include "engine/loader.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/hash.h"
#include "base/log.h"
#include "exec/cpu.h"
#include "pipeline/sample_steps.h"
#include "plan/padding.h"
#include "plan/step.h"
#include "source/url.h"

namespace stoker {
namespace {

constexpr std::chrono::seconds kTellOfStallAfter{5};
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
  return check_dp_size(s.output.pack.packs_per_step, s.dp_size);
}

}  // namespace

Loader::Loader(LoaderSettings settings, const Clock& clock)
    : settings_(std::move(settings)), clock_(clock), pid_(getpid()) {}

Result<std::unique_ptr<Loader>> Loader::create(LoaderSettings settings, const Clock& clock) {
  STOKER_CHECKED(check_settings(settings));
  std::unique_ptr<Loader> loader(new Loader(std::move(settings), clock));
  STOKER_TRY(loader->fetcher_, Fetcher::create(fetch_settings(loader->settings_), clock));
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
  auto work = [&]() -> Status {
    if (settings_.dp_size > 1) {
      STOKER_TRY(service_, start_service(settings_.exchange));
    }
    say("reading the model's folder");
    STOKER_TRY(model_, load_model(settings_));
    STOKER_CHECKED(check_memory(settings_, model_->config()));
    if (!settings_.output.cost && !model_->cost()) {
      log(LogLevel::kInfo, fmt::format("{}/config.json does not say how large the model is: packs are balanced by the "
                                       "costs of Qwen3-VL-8B, unless pack.cost_file has others",
                                       settings_.output.model));
    }
    STOKER_TRY(dataset_, Dataset::open(settings_, *fetcher_, stop, say));
    STOKER_CHECKED(check_data_size(dataset_->rows_per_pass(), settings_.output.pack.packs_per_step,
                                   settings_.output.epochs.has_value()));
    fingerprint_ = make_fingerprint();
    say("opening the index of lengths");
    known_ = std::make_unique<KnownLengths>(settings_, *dataset_, model_, stop);
    return {};
  };
  Status status = work();
  MutexLock lock(mu_);
  open_status_ = std::move(status);
  progress_.clear();
  is_opened_ = true;
  opened_changed_.notify_all();
}

std::string Loader::make_fingerprint() const {
  const OutputSettings& o = settings_.output;
  std::string out;
  auto add = [&out](std::string_view name, std::initializer_list<std::string> values) {
    Digest digest;
    for (const std::string& value : values) digest.add(value);
    out += fmt::format("{}{}={}", out.empty() ? "" : " ", name, digest.hex().substr(0, 8));
  };
  add("data", {dataset_->fingerprint()});
  Digest rows;
  for (const DataSettings& data : o.data) {
    rows.add(stoker::describe(data.rows));
    rows.add_int(static_cast<std::int64_t>(data.max_row_bytes));
  }
  add("rows", {rows.hex()});
  if (std::any_of(o.data.begin(), o.data.end(), [](const DataSettings& d) { return d.share != Share(); })) {
    Digest shares;
    for (const DataSettings& data : o.data) {
      shares.add_int(static_cast<std::int64_t>(data.share.kind));
      shares.add_int(static_cast<std::int64_t>(data.share.value));
    }
    add("mixture", {shares.hex()});
  }
  add("model", {model_->fingerprint()});
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
  if (const CostModel cost = cost_of(o, *model_); cost != CostModel{}) {
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
  pipeline_ = std::make_unique<Pipeline>(settings_, *dataset_, model_, known_.get(), std::move(fetcher_), fingerprint_,
                                         cursor_, clock_);
  history_.push_back(cursor_);
  has_started_ = true;
  return {};
}

Result<std::optional<Batch>> Loader::next_within(std::chrono::milliseconds timeout) {
  STOKER_CHECKED(check_usable());
  if (!failed_.ok()) return failed_;
  if (!has_started_) STOKER_CHECKED(start());
  auto batch = take_within(timeout);
  if (!batch.ok() && batch.status().code() != Code::kCancelled) failed_ = batch.status();
  return batch;
}

Result<std::optional<Batch>> Loader::take_within(std::chrono::milliseconds timeout) {
  if (!is_in_next_) {
    MutexLock lock(told_mu_);
    meter_.next_begins(is_step_start_, clock_.now() - std::exchange(open_wait_, Nanos{0}));
    is_in_next_ = true;
    if (is_step_start_) pipeline_->want_step(static_cast<std::int64_t>(cursor_.step));
  }
  auto taken = pipeline_->take_within(timeout);
  if (!taken.ok() || !*taken) {
    STOKER_CHECKED(write_ledger(pipeline_->take_left_over()));
    if (!taken.ok()) return std::move(taken).status();
    STOKER_CHECKED(check_memory_stall());
    return std::optional<Batch>();
  }
  stalled_since_.reset();
  ReadyPack& pack = **taken;
  STOKER_CHECKED(write_ledger(pack.task.planned_around));
  STOKER_CHECKED(write_ledger(pack.found_late));
  STOKER_CHECKED(check_late(pack));
  STOKER_CHECKED(account(pack));
  is_in_next_ = false;
  return std::optional<Batch>(std::move(pack.batch));
}

/// All memory may be in batches that the trainer holds. Another thread of it may give some back, so that is said, and
/// is an error only when it has lasted as long as an outage may.
Status Loader::check_memory_stall() {
  if (!pipeline_->waits_for_held_memory()) {
    stalled_since_.reset();
    return {};
  }
  const Nanos now = clock_.now();
  if (!stalled_since_) stalled_since_ = now;
  const Nanos lasted = now - *stalled_since_;
  auto sentence = [&] {
    return fmt::format(
        "the next batch waits for memory: the trainer holds batches of {} MB, speed.memory_limit is {} MB for this "
        "rank; let "
        "batches go before asking for more, or raise the limit",
        pipeline_->memory_in_use_bytes() >> 20, settings_.speed.memory_limit_bytes >> 20);
  };
  if (to_seconds(lasted) >= settings_.outage_limit_s) return Status(Reason::kMemoryLimit, sentence());
  if (!is_stall_told_ && lasted >= kTellOfStallAfter) {
    is_stall_told_ = true;
    log(LogLevel::kWarning, sentence());
  }
  return {};
}

Status Loader::write_ledger(const std::vector<LedgerEntry>& entries) {
  if (entries.empty()) return {};
  STOKER_CHECKED(ledger_->append(entries, *dataset_));
  MutexLock lock(told_mu_);
  for (const LedgerEntry& entry : entries) ++delivered_.bad[entry.status.reason()];
  return {};
}

Status Loader::account(const ReadyPack& pack) {
  const Batch& batch = pack.batch;
  MutexLock lock(told_mu_);
  meter_.next_ends(clock_.now());
  ++delivered_.batches;
  delivered_.samples += pack.n_samples_planned - static_cast<std::int64_t>(pack.found_late.size());
  delivered_.tokens += batch.counts.tokens - batch.counts.pad_tokens;
  const PackSettings& pack_settings = settings_.output.pack;
  room_tokens_ += pack_settings.form == PackForm::kPacked
                      ? pack_settings.tokens_per_pack
                      : batch.shape.samples * row_tokens(pack_settings, batch.max_seqlen);
  delivered_.target_tokens += batch.counts.target_tokens;
  delivered_.patches += batch.counts.patches + batch.counts.video_patches;
  delivered_.bytes += static_cast<std::int64_t>(PackLayout(batch.shape).n_bytes);
  is_step_start_ = pack.task.is_last_of_step;
  if (pack.task.is_last_of_step) {
    ++delivered_.steps;
    cursor_ = pack.task.state_after;
    history_.push_back(cursor_);
    if (history_.size() > kHistory) history_.pop_front();
  }
  return {};
}

Status Loader::check_late(const ReadyPack& pack) {
  if (pack.found_late.empty()) return {};
  const auto where = [this](const LedgerEntry& entry) {
    return dataset_->manifest(entry.entry.source).describe(entry.entry.row) + ": " + entry.media;
  };
  const bool stops_at_change = settings_.output.changed_media == ChangedMedia::kStop;
  for (const LedgerEntry& entry : pack.found_late) {
    if (settings_.bad_samples.policy != BadSamplePolicy::kStop &&
        !(stops_at_change && entry.status.reason() == Reason::kMediaChanged)) {
      continue;
    }
    Status status = entry.status;
    return std::move(status).with(where(entry));
  }
  const LedgerEntry& first = pack.found_late.front();
  n_late_bad_ += static_cast<std::int64_t>(pack.found_late.size());
  std::int64_t n_samples = 0;
  {
    MutexLock lock(told_mu_);
    n_samples = delivered_.samples;
  }
  const std::int64_t seen = std::max(n_samples + n_late_bad_, settings_.output.window_samples / settings_.dp_size);
  if (static_cast<double>(n_late_bad_) > settings_.bad_samples.max_fraction * static_cast<double>(seen)) {
    return Status(
        Reason::kTooManyBad,
        fmt::format("{} of {} samples of this rank turned out bad, bad_samples.max_fraction is {}; the last is {}: {}",
                    n_late_bad_, seen, settings_.bad_samples.max_fraction, where(first), first.status.to_string()));
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
  if (state.cursor.window >= dataset_->n_windows()) {
    return Status(Reason::kState,
                  fmt::format("the state names window {}, past the end of the data", state.cursor.window));
  }
  if (!point.warning.empty()) log(LogLevel::kWarning, point.warning);
  cursor_ = std::move(point.cursor);
  return {};
}

Result<SampleOrigin> Loader::describe(std::int64_t sample_id) const {
  if (!dataset_) return Status(Reason::kState, "the loader is not open");
  if (sample_id < 0) {
    return Status(Reason::kSettings, fmt::format("there is no sample {} in the order (-1 marks a dummy)", sample_id));
  }
  STOKER_TRY(const OrderEntry entry, dataset_->at(static_cast<std::uint64_t>(sample_id)));
  const Manifest& manifest = dataset_->manifest(entry.source);
  const RowLocation at = manifest.row(entry.row);
  SampleOrigin origin{.pass = entry.pass,
                      .manifest = dataset_->name(entry.source),
                      .line = at.line,
                      .byte_offset = at.offset,
                      .media = {}};
  std::string buffer;
  STOKER_TRY(const std::string_view line, manifest.read(entry.row, buffer));
  if (auto row = parse_row(line, dataset_->rows(entry.source)); row.ok()) {
    for (const MediaRef& media : row->media) origin.media.push_back(shown_media(media.reference));
  }
  return origin;
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
    if (pipeline_) out.pipeline = pipeline_->snapshot();
  }
  if (settings_.output.user_code) {
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
  if (pipeline_) pipeline_->stop();  // not destroyed: the trainer's thread may be in it
  service_.reset();
}

Loader::~Loader() {
  if (getpid() != pid_) {
    // A forked child has none of the threads: joining them would hang, so what they belong to is left alone.
    (void)pipeline_.release();
    (void)known_.release();
    (void)fetcher_.release();
    (void)new std::shared_ptr<TcpServer>(std::move(service_));
    if (opening_.joinable()) opening_.detach();
    return;
  }
  close();
}

}  // namespace stoker

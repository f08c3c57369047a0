#include "engine/checker.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "exec/cpu.h"
#include "pipeline/sample_steps.h"

namespace stoker {
namespace {

// Two windows are under way at a time, so that workers have rows while another window's last headers arrive.
constexpr std::uint64_t kWindowRows = 1024;
constexpr std::size_t kMostShapes = 64;
constexpr const char* kOtherShapes = "(other shapes)";

std::string count_of(std::size_t n, const char* what) {
  if (n == 0) return fmt::format("no {}s", what);
  return n == 1 ? fmt::format("1 {}", what) : n <= 8 ? fmt::format("{} {}s", n, what) : fmt::format("9+ {}s", what);
}

// Foreign numbers: a sum of absurd lengths stays at the largest number instead of wrapping round.
std::int64_t saturating_sum(std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
}

std::string shape_of(const Sample& row, const RowNotes& notes) {
  const bool has_system = !row.turns.empty() && row.turns.front().role == Role::kSystem;
  std::size_t n_clips = 0;
  for (const MediaRef& media : row.media) n_clips += media.kind == MediaKind::kVideo ? 1 : 0;
  std::string shape = fmt::format("{}, {}, {}", name_of(notes.row_shape), count_of(row.media.size() - n_clips, "image"),
                                  count_of(row.turns.size(), "turn"));
  if (n_clips > 0) shape += ", " + count_of(n_clips, "clip");
  if (has_system) shape += ", system";
  if (!row.tools.empty()) shape += ", tools";
  return shape;
}

}  // namespace

void LogHistogram::add(std::int64_t value) {
  value = std::max<std::int64_t>(value, 0);
  std::size_t bucket = static_cast<std::size_t>(value);
  if (value >= 8) {  // below, each value has a bucket of its own
    const int octave = 63 - std::countl_zero(static_cast<std::uint64_t>(value));
    bucket = static_cast<std::size_t>(4 * (octave - 1) + ((value >> (octave - 2)) & 3));
  }
  ++counts_[std::min(bucket, kBuckets - 1)];
  least_ = n_ == 0 ? value : std::min(least_, value);
  most_ = std::max(most_, value);
  ++n_;
  total_ = saturating_sum(total_, value);
}

std::int64_t LogHistogram::begin_of(std::size_t bucket) {
  if (bucket < 8) return static_cast<std::int64_t>(bucket);
  const std::size_t octave = bucket / 4 + 1;
  if (octave > 61) return INT64_MAX;
  return static_cast<std::int64_t>(4 + bucket % 4) << (octave - 2);
}

void LogHistogram::merge(const LogHistogram& other) {
  if (other.n_ == 0) return;
  for (std::size_t i = 0; i < kBuckets; ++i) counts_[i] += other.counts_[i];
  least_ = n_ == 0 ? other.least_ : std::min(least_, other.least_);
  most_ = std::max(most_, other.most_);
  n_ += other.n_;
  total_ = saturating_sum(total_, other.total_);
}

std::vector<LogHistogram::Bucket> LogHistogram::buckets() const {
  std::vector<Bucket> out;
  for (std::size_t i = 0; i < kBuckets; ++i) {
    if (counts_[i] > 0) out.push_back({begin_of(i), begin_of(i + 1), counts_[i]});
  }
  return out;
}

std::int64_t LogHistogram::quantile(double share) const {
  const auto wanted = static_cast<std::int64_t>(std::ceil(share * static_cast<double>(n_)));
  std::int64_t seen = 0;
  for (const Bucket& bucket : buckets()) {
    seen += bucket.n;
    if (seen >= wanted) return std::min(bucket.end - 1, most_);
  }
  return most_;
}

/// What is kept of a row until its window is merged.
struct Checker::RowFacts {
  std::string shape;
};

Checker::Checker(LoaderSettings settings, CheckOptions options, const Clock& clock)
    : settings_(std::move(settings)), options_(std::move(options)), clock_(clock), began_(clock.now()) {}

Result<std::unique_ptr<Checker>> Checker::create(LoaderSettings settings, CheckOptions options, const Clock& clock) {
  settings.output.shuffle = Shuffle::kNone;
  settings.output.epochs = 1;
  for (DataSettings& data : settings.output.data) data.share = {};  // every row, however often it will come
  std::unique_ptr<Checker> checker(new Checker(std::move(settings), std::move(options), clock));
  const LoaderSettings& s = checker->settings_;
  STOKER_TRY(auto fetcher, Fetcher::create(fetch_settings(s), clock));
  {
    MutexLock lock(checker->fetcher_mu_);
    checker->fetcher_ = std::move(fetcher);
  }
  Checker* const raw = checker.get();
  checker->thread_ = std::jthread([raw](std::stop_token stop) { raw->run(std::move(stop)); });
  return checker;
}

void Checker::run(std::stop_token stop) {
  become_background_thread("stoker-check");
  Status status = work(std::move(stop));
  MutexLock lock(mu_);
  status_ = std::move(status);
  report_.elapsed_s = to_seconds(clock_.now() - began_);
  is_done_ = true;
  changed_.notify_all();
}

Status Checker::work(std::stop_token stop) {
  auto say = [this](std::string_view line) {
    MutexLock lock(mu_);
    progress_ = line;
  };
  say("reading the model's folder");
  STOKER_TRY(model_, load_model(settings_));
  Fetcher* fetcher = nullptr;
  {
    MutexLock lock(fetcher_mu_);
    fetcher = fetcher_.get();
  }
  say("counting the rows");
  STOKER_TRY(dataset_, Dataset::open(settings_, *fetcher, stop, say));
  say("");
  if (!options_.ledger.empty()) unlink(options_.ledger.c_str());
  ledger_ = std::make_unique<Ledger>(options_.ledger);
  {
    MutexLock lock(mu_);
    report_.n_rows_in_all = *dataset_->order().size();
  }
  WorkerPool workers(settings_.speed.cpu_threads, "stoker-cpu", clock_);
  std::stop_source walk_stop;
  const std::stop_callback pass_on(stop, [&] { walk_stop.request_stop(); });
  Mutex facts_mu;
  // Facts of the windows under way. A window's rows write to places of their own.
  std::map<std::uint64_t, std::vector<RowFacts>> facts;
  MeasureOptions options{.headers = [this](std::uint64_t row) { return headers_of(row); },
                         .on_row =
                             [&](std::uint64_t order_index, const Sample& row, const RowNotes& notes) {
                               std::vector<RowFacts>* window = nullptr;
                               {
                                 MutexLock lock(facts_mu);
                                 window = &facts.at(order_index / kWindowRows);
                               }
                               (*window)[order_index % kWindowRows].shape = shape_of(row, notes);
                             },
                         .max_known_sizes = 65536};
  Measurer measurer(settings_, *dataset_, model_, *fetcher, workers, std::move(options));

  const std::uint64_t n_rows = *dataset_->order().size();
  const std::uint64_t n_windows = (n_rows + kWindowRows - 1) / kWindowRows;
  std::atomic<std::uint64_t> next_window{0};
  Mutex turn_mu;
  std::condition_variable_any turn_changed;
  std::uint64_t turn = 0;
  Status failed;
  auto walk = [&] {
    become_background_thread("stoker-check");
    for (std::uint64_t w = next_window++; w < n_windows && !walk_stop.stop_requested(); w = next_window++) {
      const std::uint64_t first = w * kWindowRows;
      const std::uint64_t n = std::min(kWindowRows, n_rows - first);
      {
        MutexLock lock(facts_mu);
        facts[w].resize(n);
      }
      auto measured = measurer.measure(w, first, n, w, walk_stop.get_token());
      MutexLock lock(turn_mu);
      turn_changed.wait(lock, walk_stop.get_token(), [&] { return turn == w; });
      if (walk_stop.stop_requested()) return;
      Status status;
      if (measured.ok()) {
        std::vector<RowFacts> own;
        {
          MutexLock facts_lock(facts_mu);
          own = std::move(facts.extract(w).mapped());
        }
        status = merge(**measured, own);
      } else {
        status = std::move(measured).status();
      }
      if (!status.ok()) {
        failed = std::move(status);
        walk_stop.request_stop();
        return;
      }
      ++turn;
      turn_changed.notify_all();
    }
  };
  {
    std::jthread other(walk);
    walk();
  }
  // Requests under way hold the measurer: they end before it does.
  if (walk_stop.stop_requested()) {
    MutexLock lock(fetcher_mu_);
    fetcher->stop();
  }
  workers.stop();
  if (!failed.ok()) return failed;
  if (stop.stop_requested()) return {Reason::kStopped, "the check was stopped"};
  for (std::uint32_t i = 0; i < dataset_->n_sources(); ++i) {
    STOKER_CHECKED(dataset_->manifest(i).check_unchanged());
  }
  return {};
}

HeaderReads Checker::headers_of(std::uint64_t row) const {
  if (!options_.n_media_rows) return HeaderReads::kAll;
  const std::uint64_t n = *dataset_->order().size();
  const std::uint64_t wanted = std::min(*options_.n_media_rows, n);
  if (wanted == 0) return HeaderReads::kNone;
  // Every `stride`-th row from the first on: evenly spread, a little more than were asked for where it does not divide.
  return row % std::max<std::uint64_t>(n / wanted, 1) == 0 ? HeaderReads::kAll : HeaderReads::kNone;
}

void Checker::count_media(const MeasuredSample& sample, CheckReport& to) const {
  const bool is_read = headers_of(sample.order_index) == HeaderReads::kAll;
  for (std::size_t k = 0; k < sample.n_pictures(); ++k) {
    const MeasuredImage& picture = sample.picture(k);
    ++to.n_media;
    to.n_headers += is_read ? 1 : 0;
    if (picture.bad != Reason::kNone) {
      ++to.media_rejected[picture.bad];
    } else if (picture.upright == qwen_vl::SizePx{}) {
      ++to.n_unsized;
    } else {
      to.media_pixels.add(std::int64_t{picture.upright.height} * picture.upright.width);
      if (!picture.is_frame) to.media_tokens.add(picture.plan.n_tokens);
    }
  }
  for (const MeasuredClip& clip : sample.clips) {
    if (clip.plan.n_tokens > 0) to.media_tokens.add(clip.plan.n_tokens);
  }
}

Status Checker::merge(const MeasuredWindow& window, std::span<const RowFacts> facts) {
  CheckReport seen;
  std::vector<LedgerEntry> rejected;
  for (std::size_t i = 0; i < window.samples.size(); ++i) {
    const MeasuredSample& sample = window.samples[i];
    ++seen.n_rows;
    if (!facts[i].shape.empty()) {
      ++seen.shapes[facts[i].shape];
      count_media(sample, seen);
    }
    if (!sample.bad.ok()) {
      ++seen.n_rejected;
      ++seen.rejected[sample.bad.reason()];
      rejected.push_back({sample.order_index, sample.entry, sample.bad_media, sample.bad});
      continue;
    }
    bool is_length_known = true;
    for (const MeasuredImage& image : sample.images) {
      is_length_known = is_length_known && image.is_planned();
      seen.n_patches += image.plan.n_patches();
    }
    for (const MeasuredClip& clip : sample.clips) {
      is_length_known = is_length_known && clip.plan.n_tokens > 0;
      seen.n_patches += clip.plan.n_patches();
    }
    if (is_length_known) seen.tokens.add(sample.tokens);
    seen.text_tokens.add(static_cast<std::int64_t>(sample.text.ids.size()));
    seen.target_tokens.add(sample.text.n_trained);
  }
  STOKER_CHECKED(ledger_->append(rejected, *dataset_));

  MutexLock lock(mu_);
  report_.n_rows += seen.n_rows;
  report_.n_rejected += seen.n_rejected;
  report_.n_media += seen.n_media;
  report_.n_headers += seen.n_headers;
  report_.n_unsized += seen.n_unsized;
  report_.n_patches += seen.n_patches;
  for (const auto& [reason, n] : seen.rejected) report_.rejected[reason] += n;
  for (const auto& [reason, n] : seen.media_rejected) report_.media_rejected[reason] += n;
  for (const auto& [shape, n] : seen.shapes) {
    const bool has_room = report_.shapes.contains(shape) || report_.shapes.size() < kMostShapes;
    report_.shapes[has_room ? shape : kOtherShapes] += n;
  }
  report_.tokens.merge(seen.tokens);
  report_.text_tokens.merge(seen.text_tokens);
  report_.target_tokens.merge(seen.target_tokens);
  report_.media_pixels.merge(seen.media_pixels);
  report_.media_tokens.merge(seen.media_tokens);
  for (const LedgerEntry& entry : rejected) {
    auto& kept = report_.examples[entry.status.reason()];
    if (kept.size() >= static_cast<std::size_t>(options_.n_examples)) continue;
    const RowLocation at = dataset_->manifest(entry.entry.source).row(entry.entry.row);
    kept.push_back({dataset_->name(entry.entry.source), at.line, at.offset, entry.media, entry.status.message()});
  }
  return {};
}

Result<bool> Checker::wait_within(std::chrono::milliseconds timeout) {
  MutexLock lock(mu_);
  changed_.wait_for(lock, timeout, [&]() STOKER_NO_ANALYSIS { return is_done_; });
  if (is_done_ && !status_.ok()) return status_;
  return is_done_;
}

CheckReport Checker::report() const {
  MutexLock lock(mu_);
  CheckReport out = report_;
  if (!is_done_) out.elapsed_s = to_seconds(clock_.now() - began_);
  return out;
}

std::string Checker::progress() const {
  MutexLock lock(mu_);
  return progress_;
}

void Checker::stop() {
  thread_.request_stop();
  if (settings_.output.user_code) settings_.output.user_code->cancel();
  {
    MutexLock lock(fetcher_mu_);
    if (fetcher_) fetcher_->stop();
  }
  if (thread_.joinable()) thread_.join();
}

}  // namespace stoker

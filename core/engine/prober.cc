#include "engine/prober.h"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "exec/cpu.h"
#include "manifest/row.h"
#include "pipeline/dataset.h"
#include "pipeline/sample_steps.h"
#include "source/data/data_url.h"
#include "source/url.h"

namespace stoker {
namespace {

constexpr std::size_t kMostSamples = 2'000'000;  // of a phase, 24 bytes each
constexpr double kOutageLimitS = 5;              // nobody wants to look at a probe for longer
constexpr Nanos kLookForObjects = std::chrono::seconds(3);

double cpu_s() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

bool is_on_network(const Location& at) { return at.kind == Location::Kind::kS3 || at.kind == Location::Kind::kHttp; }

std::string storage_of(const std::string& url) {
  const auto at = parse_location(url);
  if (!at.ok() || !is_on_network(*at)) return "files";
  if (at->kind == Location::Kind::kS3) return "s3";
  const std::size_t begin = url.find("://") + 3;
  const std::string authority = url.substr(begin, url.find_first_of("/?#", begin) - begin);
  return url.substr(0, begin) + authority.substr(authority.rfind('@') + 1);  // npos + 1: all of it
}

}  // namespace

/// Shared with the requests under way, which may end after it.
struct Prober::Phase {
  Phase(int in_flight, Nanos now, Nanos lasts, Nanos patience)
      : concurrency(in_flight),
        began(now),
        submit_until(now + lasts),
        wait_until(now + lasts + patience),
        n_in_flight(in_flight) {}

  struct Answer {
    Nanos began, ended, first_byte, took;
    std::uint64_t n_bytes;
    bool is_given_up;
  };

  const int concurrency;
  const Nanos began, submit_until, wait_until;
  FetchStats stats_before;
  double cpu_before_s = 0;
  std::stop_source give_up;

  Mutex mu;
  std::condition_variable_any changed;
  int n_in_flight STOKER_GUARDED_BY(mu);
  std::int64_t n_requests STOKER_GUARDED_BY(mu) = 0;
  std::int64_t n_ended STOKER_GUARDED_BY(mu) = 0;
  std::int64_t n_repeated STOKER_GUARDED_BY(mu) = 0;
  std::optional<Nanos> warm_since STOKER_GUARDED_BY(mu);  ///< every place has had an answer
  std::vector<Answer> answers STOKER_GUARDED_BY(mu);
  Status last_failure STOKER_GUARDED_BY(mu);
};

Prober::Prober(LoaderSettings settings, ProbeOptions options, const Clock& clock)
    : settings_(std::move(settings)), options_(std::move(options)), clock_(clock) {}

Result<std::unique_ptr<Prober>> Prober::create(LoaderSettings settings, ProbeOptions options, const Clock& clock) {
  settings.output.shuffle = Shuffle::kRows;
  settings.output.epochs = 1;
  settings.output.split.reset();
  settings.output.uses_held_out = false;
  settings.speed.fetch_concurrency = options.max_concurrency;
  settings.speed.max_fetch_concurrency = 0;
  settings.speed.hedge_share = 0;
  settings.cache = {};
  settings.outage_limit_s = std::min(settings.outage_limit_s, kOutageLimitS);
  std::unique_ptr<Prober> prober(new Prober(std::move(settings), std::move(options), clock));
  STOKER_TRY(prober->fetcher_, Fetcher::create(fetch_settings(prober->settings_), clock));
  Prober* const raw = prober.get();
  prober->thread_ = std::jthread([raw](std::stop_token stop) { raw->open(std::move(stop)); });
  return prober;
}

void Prober::open(std::stop_token stop) {
  become_background_thread("stoker-probe");
  Status status = find_objects(std::move(stop));
  MutexLock lock(mu_);
  status_ = std::move(status);
  is_open_ = true;
  changed_.notify_all();
}

Status Prober::find_objects(std::stop_token stop) {
  if (options_.urls.empty()) {
    STOKER_CHECKED(take_media(stop));
  } else {
    for (const std::string& url : options_.urls) {
      STOKER_TRY(const Location at, parse_location(url));
      objects_.are_local = !is_on_network(at);
      targets_.push_back({url});
    }
    if (targets_.size() == 1) STOKER_CHECKED(take_parts(options_.urls.front(), stop));
  }
  objects_.n_objects = targets_.size();
  storage_ = storage_of(targets_.front().url);
  return {};
}

// One large object has many parts to read; one small object can only be read again and again.
Status Prober::take_parts(const std::string& url, std::stop_token stop) {
  STOKER_TRY(const FetchedObject head, fetcher_->fetch({.url = url, .length = 1, .if_match = "", .stop = stop}, stop));
  n_read_ = 1;
  const std::uint64_t n_parts = std::min<std::uint64_t>(head.total_bytes / kPartBytes, options_.max_objects);
  if (n_parts < 2) return {};
  targets_.clear();
  for (std::uint64_t i = 0; i < n_parts; ++i) targets_.push_back({url, i * kPartBytes});
  objects_.are_parts = true;
  return {};
}

Status Prober::take_media(std::stop_token stop) {
  auto say = [this](std::string_view line) {
    MutexLock lock(mu_);
    progress_ = line;
  };
  STOKER_TRY(const Dataset dataset, Dataset::open(settings_, *fetcher_, stop, say));
  say("choosing objects");
  const Nanos until = clock_.now() + kLookForObjects;
  const std::uint64_t n_rows = *dataset.order().size();
  std::unordered_set<std::string> known;
  std::string buffer;
  std::size_t n_on_network = 0;
  for (std::uint64_t i = 0; i < n_rows && targets_.size() < options_.max_objects && clock_.now() < until; ++i) {
    if (stop.stop_requested()) return {Reason::kStopped, "the probe was stopped"};
    STOKER_TRY(const OrderEntry entry, dataset.at(i, stop));
    STOKER_TRY(std::string_view line, dataset.manifest(entry.source).read(entry.row, buffer));
    std::string rewritten;
    if (settings_.output.user_code && settings_.output.user_code->has_row()) {
      auto changed = settings_.output.user_code->row(line);
      if (!changed.ok()) continue;
      rewritten = std::move(changed).value();
      line = rewritten;
    }
    const auto row = parse_row(line, dataset.rows(entry.source));
    if (!row.ok()) continue;  // `check` is for bad rows
    ++objects_.n_rows;
    for (const PictureRef& picture : pictures_of(row->media)) {
      if (is_data_url(*picture.reference)) {
        ++objects_.n_inline;
        continue;
      }
      auto url = resolve_media(*picture.reference, dataset.media_root(entry.source));
      if (!url.ok()) continue;
      const auto at = parse_location(*url);
      if (!at.ok()) continue;
      ++objects_.n_media;
      objects_.n_sized += is_size_trusted(settings_.output, *picture.media) ? 1 : 0;
      if (!known.insert(*url).second || targets_.size() >= options_.max_objects) continue;
      n_on_network += is_on_network(*at) ? 1 : 0;
      targets_.push_back({std::move(url).value()});
    }
  }
  objects_.are_local = n_on_network == 0;
  if (!targets_.empty()) return {};
  return {Reason::kNoData,
          fmt::format("the {} rows that could be read name no media that storage would be asked for", objects_.n_rows)};
}

Result<bool> Prober::open_within(std::chrono::milliseconds timeout) {
  MutexLock lock(mu_);
  changed_.wait_for(lock, timeout, [&]() STOKER_NO_ANALYSIS { return is_open_; });
  if (is_open_ && !status_.ok()) return status_;
  return is_open_;
}

std::string Prober::progress() const {
  MutexLock lock(mu_);
  return progress_;
}

void Prober::begin_phase(int concurrency, Nanos lasts, Nanos patience) {
  fetcher_->set_concurrency(concurrency);
  phase_ = std::make_shared<Phase>(concurrency, clock_.now(), lasts, patience);
  phase_->stats_before = fetcher_->stats();
  phase_->cpu_before_s = cpu_s();
  for (int i = 0; i < concurrency; ++i) submit(phase_);
}

void Prober::submit(const std::shared_ptr<Phase>& phase) {
  const std::uint64_t k = next_target_++;
  const Target& target = targets_[k % targets_.size()];
  {
    MutexLock lock(phase->mu);
    ++phase->n_requests;
    phase->n_repeated += k >= targets_.size() ? 1 : 0;
  }
  FetchRequest request{.url = target.url,
                       .offset = target.offset,
                       // Equal requests at the same time would be asked for once.
                       .length = kPartBytes + k / targets_.size(),
                       .if_match = "",
                       .stop = phase->give_up.get_token()};
  fetcher_->submit(std::move(request), [this, phase, began = clock_.now()](Result<FetchedObject> got) {
    if (answered(*phase, began, std::move(got))) submit(phase);
  });
}

/// @return Whether another request takes its place.
bool Prober::answered(Phase& phase, Nanos began, Result<FetchedObject> got) {
  const Nanos now = clock_.now();
  const bool is_stopped = !got.ok() && got.status().code() == Code::kCancelled;
  MutexLock lock(phase.mu);
  if (got.ok() || is_stopped) {
    Phase::Answer answer{began, now, now - began, now - began, 0, is_stopped};
    if (got.ok()) {
      ++n_read_;
      answer.first_byte = got->first_byte;
      answer.took = got->took;
      answer.n_bytes = got->bytes.size();
    }
    if (phase.answers.size() < kMostSamples) phase.answers.push_back(answer);
  } else {
    phase.last_failure = std::move(got).status();
  }
  ++phase.n_ended;
  if (!phase.warm_since && phase.n_ended >= phase.concurrency) phase.warm_since = now;
  // A failure before anything was ever read, and not of one object, is one of the settings.
  const bool is_hopeless = n_read_ == 0 && !phase.last_failure.ok() && phase.last_failure.code() != Code::kBadSample;
  if (!is_stopped && !is_hopeless && now < phase.submit_until && !phase.give_up.stop_requested()) return true;
  if (--phase.n_in_flight == 0) phase.changed.notify_all();
  return false;
}

Result<std::optional<ProbePhase>> Prober::phase_within(std::chrono::milliseconds timeout) {
  const Nanos until = clock_.now() + timeout;
  for (;;) {
    const Nanos now = clock_.now();
    if (now >= phase_->wait_until) phase_->give_up.request_stop();
    MutexLock lock(phase_->mu);
    if (phase_->n_in_flight == 0) {
      if (n_read_ == 0 && !phase_->last_failure.ok()) return phase_->last_failure;
      break;
    }
    if (now >= until) return std::optional<ProbePhase>();
    const Nanos next = phase_->wait_until > now ? std::min(until, phase_->wait_until) : until;
    phase_->changed.wait_for(lock, next - now, [&]() STOKER_NO_ANALYSIS { return phase_->n_in_flight == 0; });
  }
  return std::optional(finished(*phase_));
}

ProbePhase Prober::end_phase() {
  phase_->give_up.request_stop();
  {
    MutexLock lock(phase_->mu);
    phase_->changed.wait(lock, [&]() STOKER_NO_ANALYSIS { return phase_->n_in_flight == 0; });
  }
  return finished(*phase_);
}

ProbePhase Prober::finished(Phase& phase) const {
  ProbePhase out;
  out.concurrency = phase.concurrency;
  out.cpu_s = cpu_s() - phase.cpu_before_s;
  out.whole_s = to_seconds(clock_.now() - phase.began);
  const FetchStats stats = fetcher_->stats();
  out.limit = static_cast<int>(stats.limit);
  out.n_throttled = stats.n_throttled - phase.stats_before.n_throttled;
  for (const auto& [reason, n] : stats.failed_tries) {
    const auto before = phase.stats_before.failed_tries.find(reason);
    const std::int64_t fresh = n - (before == phase.stats_before.failed_tries.end() ? 0 : before->second);
    if (fresh > 0) out.failed_tries[reason] = fresh;
  }
  MutexLock lock(phase.mu);
  out.n_requests = phase.n_requests;
  out.n_repeated = phase.n_repeated;
  // Storage that is too slow for the phase leaves no warm part: then all of it counts.
  const Nanos warm = phase.warm_since.value_or(Nanos::max());
  const bool has_warm_part = warm < phase.submit_until &&
                             std::any_of(phase.answers.begin(), phase.answers.end(),
                                         [&](const Phase::Answer& a) { return a.began >= warm && !a.is_given_up; });
  const Nanos from = has_warm_part ? warm : phase.began;
  Nanos last = from;
  for (const Phase::Answer& a : phase.answers) {
    if (!a.is_given_up && a.ended >= from && a.ended <= phase.submit_until) {
      ++out.n_answers;
      out.n_bytes += static_cast<std::int64_t>(a.n_bytes);
      last = std::max(last, a.ended);
    }
    if (a.began < from) continue;
    out.n_unanswered += a.is_given_up ? 1 : 0;
    out.first_byte_s.push_back(to_seconds(a.first_byte));
    out.took_s.push_back(to_seconds(a.took));
    out.bytes.push_back(static_cast<double>(a.n_bytes));
  }
  out.elapsed_s = to_seconds(last - from);
  return out;
}

void Prober::stop() {
  thread_.request_stop();
  if (settings_.output.user_code) settings_.output.user_code->cancel();
  if (fetcher_) fetcher_->stop();
  if (thread_.joinable()) thread_.join();
}

}  // namespace stoker

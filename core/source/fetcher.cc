#include <curl/curl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/log.h"
#include "base/mutex.h"
#include "metric/metric.h"
#include "source/blocking_pool.h"
#include "source/data/data_url.h"
#include "source/file/file_source.h"
#include "source/http/http_loop.h"
#include "source/job_queue.h"
#include "source/memory/memory_source.h"
#include "source/retry.h"
#include "source/s3/s3_store.h"
#include "source/source.h"

namespace stoker {
namespace {

constexpr int kMaxConcurrency = 16'384;
constexpr int kMaxThreads = 64;
constexpr int kMaxTriesForFree = 4;  // per request: tries after something was learned, without backoff

// Reasons that mean wrong settings when nothing was ever read, and trouble of the moment when something was.
bool is_about_settings(Reason reason) {
  return reason == Reason::kFetchCredentials || reason == Reason::kFetchDenied || reason == Reason::kFetchRedirect ||
         reason == Reason::kFetchTls;
}

Status check(const FetchSettings& s) {
  const auto out_of_range = [](const char* name, const char* range) {
    return Status(Reason::kSettings, fmt::format("{} must be {}", name, range));
  };
  if (s.concurrency < 1 || s.concurrency > kMaxConcurrency)
    return out_of_range("fetch_concurrency", "between 1 and 16384");
  if (s.n_threads < 1 || s.n_threads > kMaxThreads) return out_of_range("fetch threads", "between 1 and 64");
  if (s.n_file_threads < 1 || s.n_file_threads > kMaxThreads) return out_of_range("file threads", "between 1 and 64");
  if (!(s.hedge_share >= 0 && s.hedge_share <= 1)) return out_of_range("hedge_share", "between 0 and 1");
  if (!(s.outage_limit_s >= 0)) return out_of_range("outage_limit_s", "0 or more");
  if (s.timeouts.connect.count() <= 0 || s.timeouts.first_byte.count() <= 0 || s.timeouts.stall.count() <= 0) {
    return out_of_range("fetch timeouts", "positive");
  }
  if (s.retry.base.count() <= 0 || s.retry.cap < s.retry.base)
    return out_of_range("fetch backoff", "positive, and the cap no less than the base");
  return {};
}

// One connection per request in flight, and some descriptors for the rest of the program.
int fit_to_descriptors(int concurrency) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return concurrency;
  const std::uint64_t soft = limit.rlim_cur;
  const int room =
      static_cast<int>(std::min<std::uint64_t>(soft - std::min<std::uint64_t>(soft / 4 + 16, soft), kMaxConcurrency));
  if (concurrency <= room) return concurrency;
  log(LogLevel::kWarning,
      fmt::format("fetch: {} requests in flight need about {} open files, ulimit -n is {}: using {}", concurrency,
                  concurrency + concurrency / 3 + 16, soft, std::max(1, room)));
  return std::max(1, room);
}

// Encoded objects are allocated and freed by the thousand. Until a process has freed a large block once, glibc gives
// memory of this size back to the system each time and faults it in again, which doubled the cost of a 100 kB request.
// Freeing one (never touched) block teaches it.
void teach_allocator_to_keep_memory() {
  constexpr std::size_t kLargest = (std::size_t{32} << 20) - 65536;  // glibc learns from nothing larger than 32 MiB
  void* volatile block = std::malloc(kLargest);                      // volatile: the compiler would drop the pair
  std::free(block);
}

}  // namespace

class Fetcher::Impl {
 public:
  Impl(FetchSettings settings, const Clock& clock, std::unique_ptr<S3Store> s3);
  ~Impl() { stop(); }

  Status start();
  void submit(FetchRequest request, FetchDone done);
  void stop() STOKER_EXCLUDES(stop_mu_);
  void set_concurrency(int concurrency);
  FetchStats stats() const;

 private:
  // Requests that share a limit and a fate: all of the network, or all of what is local.
  class Lane final : public JobOwner {
   public:
    Lane(Impl& impl, int limit) : queue(limit), impl_(impl), limit_(limit), hedges_(impl.settings_.hedge_share) {}
    std::unique_ptr<Job> take(int worker, Nanos now, Nanos& look_again) override {
      return queue.take(worker, now, look_again);
    }
    void settle(int worker, std::unique_ptr<Job> job, Outcome outcome) override;
    Nanos hedge_delay() const override { return Nanos(hedge_delay_ns_.load(std::memory_order_relaxed)); }
    void hedge(Job& job) override STOKER_EXCLUDES(mu_);
    void set_maximum(int maximum) STOKER_EXCLUDES(mu_);

    JobQueue queue;

   private:
    void note_latency(Nanos first_byte) STOKER_REQUIRES(mu_);
    void note_success(std::optional<Nanos> first_byte) STOKER_EXCLUDES(mu_);
    bool note_failure(const Job& job, const Outcome& outcome) STOKER_EXCLUDES(mu_);  // true: something was read before
    void retry_or_fail(std::unique_ptr<Job> job, Outcome outcome);

    Impl& impl_;
    Mutex mu_;
    AdaptiveLimit limit_ STOKER_GUARDED_BY(mu_);
    StoreWatch watch_ STOKER_GUARDED_BY(mu_);
    HedgePolicy hedges_ STOKER_GUARDED_BY(mu_);
    std::atomic<std::int64_t> hedge_delay_ns_{Nanos::max().count()};  // what hedges_ says, for the loops
  };

  void answer(std::unique_ptr<Job> job, Result<FetchedObject> result);
  Lane& lane_of(const Location& at) {
    return at.kind == Location::Kind::kS3 || at.kind == Location::Kind::kHttp ? network_ : local_;
  }

  const FetchSettings settings_;
  const Clock& clock_;
  const std::uint64_t jitter_seed_;

  const std::unique_ptr<S3Store> s3_;
  PlainHttp plain_;
  const FileSource files_;
  const MemorySource memory_;
  const DataSource data_;
  Lane network_;
  Lane local_;
  BlockingPool pool_;
  std::vector<std::unique_ptr<HttpLoop>> loops_;

  std::atomic<std::uint64_t> n_sequence_{0};
  std::array<Counter, kNumReasons> failed_tries_;
  Counter n_submitted_, n_succeeded_, n_failed_, n_retries_, n_hedges_, n_hedges_won_, n_throttled_, n_bytes_, busy_ns_;

  Mutex stop_mu_;
  bool is_stopped_ STOKER_GUARDED_BY(stop_mu_) = false;
};

Fetcher::Impl::Impl(FetchSettings settings, const Clock& clock, std::unique_ptr<S3Store> s3)
    : settings_(std::move(settings)),
      clock_(clock),
      jitter_seed_(settings_.jitter_seed ? settings_.jitter_seed
                                         : mix64(static_cast<std::uint64_t>(clock.now().count()) ^
                                                 (static_cast<std::uint64_t>(getpid()) << 40))),
      s3_(std::move(s3)),
      files_(settings_.max_object_bytes),
      memory_(settings_.storage.memory),
      data_(settings_.max_object_bytes),
      network_(*this, fit_to_descriptors(settings_.concurrency)),
      local_(*this, settings_.n_file_threads),
      pool_(local_, files_, memory_, data_, clock) {}

Status Fetcher::Impl::start() {
  HttpSettings http;
  http.timeouts = settings_.timeouts;
  http.max_object_bytes = settings_.max_object_bytes;
  http.verify_tls = settings_.storage.verify_tls;
  http.ca_file = settings_.storage.ca_file;
  if (http.ca_file.empty()) http.ca_file = settings_.storage.environment("AWS_CA_BUNDLE").value_or("");
  if (!http.verify_tls) log(LogLevel::kWarning, "fetch: certificates are not verified (storage.verify_tls is false)");
  for (int i = 0; i < settings_.n_file_threads; ++i) local_.queue.add_worker(pool_.add_thread());
  for (int i = 0; i < settings_.n_threads; ++i) {
    loops_.push_back(std::make_unique<HttpLoop>(network_, *s3_, plain_, http, clock_));
    network_.queue.add_worker([loop = loops_.back().get()] { loop->wake(); });
  }
  for (std::size_t i = 0; i < loops_.size(); ++i) STOKER_CHECKED(loops_[i]->start(static_cast<int>(i)));
  pool_.start();
  return {};
}

void Fetcher::Impl::submit(FetchRequest request, FetchDone done) {
  n_submitted_.add(1);
  auto job = std::make_unique<Job>();
  job->done = std::move(done);
  job->sequence = n_sequence_.fetch_add(1, std::memory_order_relaxed);
  Result<Location> at = parse_location(request.url);
  job->request = std::move(request);
  if (!at.ok()) return answer(std::move(job), std::move(at).status());
  job->at = std::move(at).value();
  Lane& lane = lane_of(job->at);
  if (auto refused = lane.queue.push(std::move(job)))
    answer(std::move(refused), Status(Reason::kStopped, "the fetcher was stopped"));
}

void Fetcher::Impl::answer(std::unique_ptr<Job> job, Result<FetchedObject> result) {
  if (job->race) {
    const bool is_final = result.ok() || result.status().code() != Code::kCancelled;
    if (!job->race->finish(is_final)) return;
    if (job->is_hedge && result.ok()) n_hedges_won_.add(1);
  }
  (result.ok() ? n_succeeded_ : n_failed_).add(1);
  if (result.ok()) n_bytes_.add(static_cast<std::int64_t>(result->bytes.size()));
  job->done(std::move(result));
}

void Fetcher::Impl::Lane::settle(int worker, std::unique_ptr<Job> job, Outcome outcome) {
  queue.release(worker);
  ++job->n_tries;
  if (outcome.status.ok()) {
    note_success(outcome.first_byte);
    impl_.busy_ns_.add(outcome.took.count());
    outcome.object.first_byte = outcome.first_byte.value_or(outcome.took);
    outcome.object.took = outcome.took;
    impl_.answer(std::move(job), std::move(outcome.object));
    return;
  }
  if (job->race && job->race->is_over()) {
    // Of a request that lost its race the time is known from below only; left out, the tail would look too short.
    MutexLock lock(mu_);
    note_latency(outcome.took);
  }
  if (outcome.is_throttled) impl_.n_throttled_.add(1);
  if (outcome.status.code() != Code::kCancelled) {
    impl_.failed_tries_[static_cast<std::size_t>(outcome.status.reason())].add(1);
  }
  if (outcome.status.code() != Code::kUnavailable) {
    // A store that says "no such object" works.
    if (outcome.status.code() == Code::kBadSample) note_success(std::nullopt);
    impl_.answer(std::move(job), std::move(outcome.status));
    return;
  }
  retry_or_fail(std::move(job), std::move(outcome));
}

void Fetcher::Impl::Lane::hedge(Job& job) {
  if (queue.counts().limit < 2) return;  // it would have to wait for the first to end
  {
    MutexLock lock(mu_);
    if (!hedges_.take()) return;
  }
  auto second = std::make_unique<Job>();
  second->request = job.request;
  second->at = job.at;
  second->done = job.done;
  second->sequence = job.sequence;  // as early as the first
  second->is_hedge = true;
  second->race = job.race = std::make_shared<Race>();
  impl_.n_hedges_.add(1);
  if (auto refused = queue.push(std::move(second)))
    impl_.answer(std::move(refused), Status(Reason::kStopped, "the fetcher was stopped"));
}

void Fetcher::Impl::Lane::note_success(std::optional<Nanos> first_byte) {
  const Nanos now = impl_.clock_.now();
  std::string line;
  int limit = 0;
  {
    MutexLock lock(mu_);
    line = watch_.succeeded(now);
    limit_.succeeded();
    limit = limit_.get();
    if (first_byte) note_latency(*first_byte);
  }
  queue.set_limit(limit);
  if (!line.empty()) log(LogLevel::kWarning, line);
}

void Fetcher::Impl::Lane::note_latency(Nanos first_byte) {
  hedges_.answered(first_byte);
  hedge_delay_ns_.store(hedges_.delay().count(), std::memory_order_relaxed);
}

bool Fetcher::Impl::Lane::note_failure(const Job& job, const Outcome& outcome) {
  const Nanos now = impl_.clock_.now();
  std::string line;
  int limit = 0;
  bool ever_succeeded = false;
  {
    MutexLock lock(mu_);
    line = watch_.failed(now, outcome.status, job.at.shown(), impl_.settings_.outage_limit_s);
    if (outcome.is_throttled) limit_.throttled(now);
    limit = limit_.get();
    ever_succeeded = watch_.ever_succeeded();
  }
  queue.set_limit(limit);
  if (!line.empty()) log(LogLevel::kWarning, line);
  return ever_succeeded;
}

void Fetcher::Impl::Lane::retry_or_fail(std::unique_ptr<Job> job, Outcome outcome) {
  if (job->race) {
    if (job->race->leave()) return;
    job->race.reset();  // the other one failed before: this is now the only one
  }
  job->partial = std::move(outcome.partial);
  const Nanos now = impl_.clock_.now();
  if (outcome.try_again_now && job->n_tries - job->n_failures <= kMaxTriesForFree) {
    impl_.n_retries_.add(1);
    if (auto refused = queue.push(std::move(job)))
      impl_.answer(std::move(refused), Status(Reason::kStopped, "the fetcher was stopped"));
    return;
  }
  ++job->n_failures;
  if (!job->failing_since) job->failing_since = now;
  const bool ever_succeeded = note_failure(*job, outcome);
  if (is_about_settings(outcome.status.reason()) && !ever_succeeded) {
    impl_.answer(std::move(job), std::move(outcome.status));
    return;
  }
  const Nanos limit =
      std::chrono::duration_cast<Nanos>(std::chrono::duration<double>(std::min(impl_.settings_.outage_limit_s, 1e9)));
  const Nanos end = *job->failing_since + limit;
  if (now >= end) {
    // Before the job is moved from: compilers differ in which argument they evaluate first.
    Status gave_up(Reason::kOutage,
                   fmt::format("gave up after {:.3g} s and {} tries; last: {}", to_seconds(now - *job->failing_since),
                               job->n_tries, outcome.status.to_string()));
    impl_.answer(std::move(job), std::move(gave_up));
    return;
  }
  impl_.n_retries_.add(1);
  Rng rng(mix64(impl_.jitter_seed_ ^ job->sequence) + static_cast<std::uint64_t>(job->n_failures));
  const Nanos due = std::min(now + backoff(impl_.settings_.retry, job->n_failures, outcome.retry_after, rng), end);
  if (auto refused = queue.push_later(std::move(job), due))
    impl_.answer(std::move(refused), Status(Reason::kStopped, "the fetcher was stopped"));
}

void Fetcher::Impl::Lane::set_maximum(int maximum) {
  int limit = 0;
  {
    MutexLock lock(mu_);
    limit_.set_maximum(maximum);
    limit = limit_.get();
  }
  queue.set_limit(limit);
}

void Fetcher::Impl::stop() {
  MutexLock lock(stop_mu_);  // whoever comes second waits until it is done
  if (is_stopped_) return;
  is_stopped_ = true;
  for (Lane* lane : {&network_, &local_}) {
    for (auto& job : lane->queue.close()) answer(std::move(job), Status(Reason::kStopped, "the fetcher was stopped"));
  }
  for (auto& loop : loops_) loop->stop();
  pool_.stop();
}

void Fetcher::Impl::set_concurrency(int concurrency) {
  network_.set_maximum(fit_to_descriptors(std::clamp(concurrency, 1, kMaxConcurrency)));
}

FetchStats Fetcher::Impl::stats() const {
  FetchStats s;
  s.n_submitted = n_submitted_.get();
  s.n_succeeded = n_succeeded_.get();
  s.n_failed = n_failed_.get();
  s.n_retries = n_retries_.get();
  s.n_hedges = n_hedges_.get();
  s.n_hedges_won = n_hedges_won_.get();
  s.n_throttled = n_throttled_.get();
  for (int i = 0; i < kNumReasons; ++i) {
    if (const std::int64_t n = failed_tries_[static_cast<std::size_t>(i)].get(); n > 0) {
      s.failed_tries[static_cast<Reason>(i)] = n;
    }
  }
  s.n_bytes = n_bytes_.get();
  s.busy_ns = busy_ns_.get();
  for (const Lane* lane : {&network_, &local_}) {
    const JobQueue::Counts counts = lane->queue.counts();
    s.n_waiting += counts.n_waiting;
    s.n_retrying += counts.n_retrying;
    s.n_in_flight += counts.n_in_flight;
  }
  s.limit = network_.queue.counts().limit;
  return s;
}

Result<std::unique_ptr<Fetcher>> Fetcher::create(FetchSettings settings, const Clock& clock) {
  STOKER_CHECKED(check(settings));
  STOKER_TRY(std::unique_ptr<S3Store> s3, S3Store::create(settings.storage));
  teach_allocator_to_keep_memory();
  auto impl = std::make_unique<Impl>(std::move(settings), clock, std::move(s3));
  STOKER_CHECKED(impl->start());
  return std::unique_ptr<Fetcher>(new Fetcher(std::move(impl)));
}

Fetcher::Fetcher(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Fetcher::~Fetcher() = default;
void Fetcher::submit(FetchRequest request, FetchDone done) { impl_->submit(std::move(request), std::move(done)); }
void Fetcher::stop() { impl_->stop(); }
void Fetcher::set_concurrency(int concurrency) { impl_->set_concurrency(concurrency); }
FetchStats Fetcher::stats() const { return impl_->stats(); }

Result<FetchedObject> Fetcher::fetch(FetchRequest request, std::stop_token stop) {
  // Shared: when the caller is stopped first, the answer still finds a place to go.
  struct Waiting {
    Mutex mu;
    std::condition_variable_any arrived;
    std::optional<Result<FetchedObject>> result STOKER_GUARDED_BY(mu);
    std::stop_source cancel;
  };
  auto waiting = std::make_shared<Waiting>();
  const std::stop_callback pass_on(request.stop, [waiting] { waiting->cancel.request_stop(); });
  request.stop = waiting->cancel.get_token();
  submit(std::move(request), [waiting](Result<FetchedObject> result) {
    MutexLock lock(waiting->mu);
    waiting->result = std::move(result);
    waiting->arrived.notify_all();
  });
  MutexLock lock(waiting->mu);
  while (!waiting->result && !stop.stop_requested()) {
    waiting->arrived.wait(lock, stop, [&]() STOKER_NO_ANALYSIS { return waiting->result.has_value(); });
  }
  if (waiting->result) return *std::move(waiting->result);
  waiting->cancel.request_stop();
  return Status(Reason::kStopped, "no longer wanted");
}

}  // namespace stoker

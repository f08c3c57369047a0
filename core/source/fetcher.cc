#include <curl/curl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/log.h"
#include "base/mutex.h"
#include "source/blocking_pool.h"
#include "source/cache/cache_stage.h"
#include "source/data/data_url.h"
#include "source/file/file_source.h"
#include "source/http/address_book.h"
#include "source/http/http_loop.h"
#include "source/lane.h"
#include "source/memory/memory_source.h"
#include "source/s3/s3_store.h"
#include "source/source.h"

namespace stoker {
namespace {

constexpr int kMaxConcurrency = 16'384;
constexpr int kMaxThreads = 64;

Status check(const FetchSettings& s) {
  const auto out_of_range = [](const char* name, const char* range) {
    return Status(Reason::kSettings, fmt::format("{} must be {}", name, range));
  };
  if (s.concurrency < 1 || s.concurrency > kMaxConcurrency)
    return out_of_range("fetch_concurrency", "between 1 and 16384");
  if (s.max_concurrency < 0 || s.max_concurrency > kMaxConcurrency)
    return out_of_range("the most that fetch_concurrency grows to", "between 0 and 16384");
  if (s.n_threads < 1 || s.n_threads > kMaxThreads) return out_of_range("fetch threads", "between 1 and 64");
  if (s.n_file_threads < 1 || s.n_file_threads > kMaxThreads) return out_of_range("file threads", "between 1 and 64");
  if (!(s.hedge_share >= 0 && s.hedge_share <= 1)) return out_of_range("hedge_share", "between 0 and 1");
  if (!(s.outage_limit_s >= 0)) return out_of_range("outage_limit_s", "0 or more");
  if (s.timeouts.connect.count() <= 0 || s.timeouts.first_byte.count() <= 0 || s.timeouts.stall.count() <= 0) {
    return out_of_range("fetch timeouts", "positive");
  }
  if (s.retry.base.count() <= 0 || s.retry.cap < s.retry.base)
    return out_of_range("fetch backoff", "positive, and the cap no less than the base");
  if (!s.cache.dir.empty() && s.cache.limit_bytes == 0)
    return out_of_range("cache.limit", "the disk that the cache may take, such as 200GiB");
  return {};
}

Result<FetchedObject> copy_of(const FetchedObject& object, const LeaseFor& lease_for) {
  STOKER_TRY(Buffer bytes, make_buffer(lease_for, object.bytes.size()));
  if (bytes.size() > 0) std::memcpy(bytes.data(), object.bytes.data(), bytes.size());
  return FetchedObject{std::move(bytes), object.total_bytes, object.etag, object.first_byte, object.took};
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

AddressBook::Resolve resolve_of(const StorageSettings& storage) {
  if (!storage.resolver) return &AddressBook::ask_system;
  return [resolver = storage.resolver](const std::string& host, const std::stop_token&) {
    std::vector<IpAddress> found;
    for (const std::string& text : resolver(host)) {
      if (const auto address = IpAddress::parse(text)) found.push_back(*address);
    }
    return found;
  };
}

}  // namespace

Result<Buffer> make_buffer(const LeaseFor& lease_for, std::size_t n_bytes) {
  Lease lease;
  if (lease_for) {
    std::optional<Lease> given = lease_for(n_bytes);
    if (!given) return Status(Reason::kBudget, fmt::format("no room for an object of {} bytes now", n_bytes));
    lease = *std::move(given);
  }
  try {
    return Buffer(n_bytes, std::move(lease));
  } catch (const std::bad_alloc&) {
    return Status(Reason::kBudget, fmt::format("no memory for an object of {} bytes", n_bytes));
  }
}

class Fetcher::Impl {
 public:
  Impl(FetchSettings settings, const Clock& clock, std::unique_ptr<S3Store> s3);
  ~Impl() { stop(); }

  Status start();
  void submit(FetchRequest request, FetchDone done);
  void stop() STOKER_EXCLUDES(stop_mu_);
  void set_concurrency(int concurrency);
  FetchStats stats() const;
  std::optional<PendingFetch> first_pending() const STOKER_EXCLUDES(pending_mu_);

 private:
  FetchDone noted(const FetchRequest& request, std::uint64_t sequence, FetchDone done) STOKER_EXCLUDES(pending_mu_);
  void answer(std::unique_ptr<Job> job, Result<FetchedObject> result);
  void count(const Result<FetchedObject>& result);
  void answer_followers(std::vector<SharedRead::Follower> followers, const Result<FetchedObject>& result);
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
  FetchCounters counters_;
  SharedReads shared_;
  Lane network_;
  Lane local_;
  BlockingPool pool_;
  std::unique_ptr<CacheStage> cache_;  // null: there is none
  AddressBook names_;
  std::vector<std::unique_ptr<HttpLoop>> loops_;

  std::atomic<std::uint64_t> n_sequence_{0};
  std::atomic<bool> is_closing_{false};  // written by stop

  struct Pending {
    std::string url;
    Nanos since;
  };
  mutable Mutex pending_mu_;
  std::map<std::pair<std::uint64_t, std::uint64_t>, Pending> pending_
      STOKER_GUARDED_BY(pending_mu_);  // by priority, then order of submission

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
      network_(settings_, settings_.concurrency,
               fit_to_descriptors(std::max(settings_.concurrency, settings_.max_concurrency)), jitter_seed_, clock,
               counters_, [this](auto job, auto result) { answer(std::move(job), std::move(result)); }),
      local_(settings_, settings_.n_file_threads, settings_.n_file_threads, jitter_seed_, clock, counters_,
             [this](auto job, auto result) { answer(std::move(job), std::move(result)); }),
      pool_(local_, files_, memory_, data_, clock),
      names_(resolve_of(settings_.storage), clock) {}

Status Fetcher::Impl::start() {
  HttpSettings http;
  http.timeouts = settings_.timeouts;
  http.max_object_bytes = settings_.max_object_bytes;
  http.verify_tls = settings_.storage.verify_tls;
  http.ca_file = settings_.storage.ca_file;
  if (http.ca_file.empty()) http.ca_file = settings_.storage.environment("AWS_CA_BUNDLE").value_or("");
  http.http2 = settings_.storage.http2;
  STOKER_TRY(http.proxies, Proxies::create(settings_.storage));
  if (http.proxies.any()) log(LogLevel::kInfo, "fetch: through proxy " + http.proxies.shown());
  if (!http.verify_tls) log(LogLevel::kWarning, "fetch: certificates are not verified (storage.verify_tls is false)");
  for (int i = 0; i < settings_.n_file_threads; ++i) local_.queue.add_worker(pool_.add_thread());
  for (int i = 0; i < settings_.n_threads; ++i) {
    loops_.push_back(std::make_unique<HttpLoop>(network_, *s3_, plain_, http, names_, clock_));
    network_.queue.add_worker([loop = loops_.back().get()] { loop->wake(); });
  }
  for (std::size_t i = 0; i < loops_.size(); ++i) STOKER_CHECKED(loops_[i]->start(static_cast<int>(i)));
  pool_.start();
  if (settings_.cache.dir.empty()) return {};
  const S3Endpoint& s3 = s3_->endpoint();
  auto cache = CacheStage::create(
      settings_.cache, s3.scheme + "://" + s3.host + s3.base_path, clock_,
      [this](auto job) { network_.push(std::move(job)); },
      [this](auto job) { answer(std::move(job), FetchedObject()); });
  if (cache.ok()) {
    cache_ = std::move(cache).value();
  } else if (cache.status().code() == Code::kUnavailable) {  // a full disk ends no run
    log(LogLevel::kWarning,
        fmt::format("cache: {}: {}; going on without it", settings_.cache.dir, cache.status().message()));
  } else {
    return std::move(cache).status();
  }
  return {};
}

void Fetcher::Impl::submit(FetchRequest request, FetchDone done) {
  counters_.n_submitted.add(1);
  auto job = std::make_unique<Job>();
  job->sequence = n_sequence_.fetch_add(1, std::memory_order_relaxed);
  job->done = noted(request, job->sequence, std::move(done));
  Result<Location> at = parse_location(request.url);
  job->request = std::move(request);
  if (!at.ok()) return answer(std::move(job), std::move(at).status());
  job->at = std::move(at).value();
  Lane& lane = lane_of(job->at);
  if (&lane == &network_ && shared_.join(*job)) {
    counters_.n_shared.add(1);
    return;
  }
  if (&lane == &network_ && cache_ && job->request.is_media) return cache_->push(std::move(job));
  lane.push(std::move(job));
}

FetchDone Fetcher::Impl::noted(const FetchRequest& request, std::uint64_t sequence, FetchDone done) {
  const std::pair key(request.priority, sequence);
  {
    MutexLock lock(pending_mu_);
    pending_.emplace(key, Pending{request.url, clock_.now()});
  }
  return [this, key, done = std::move(done)](Result<FetchedObject> result) {
    {
      MutexLock lock(pending_mu_);
      pending_.erase(key);
    }
    done(std::move(result));
  };
}

std::optional<PendingFetch> Fetcher::Impl::first_pending() const {
  MutexLock lock(pending_mu_);
  if (pending_.empty()) return std::nullopt;
  const Pending& first = pending_.begin()->second;
  return PendingFetch{shown_media(first.url), first.since, pending_.size()};
}

void Fetcher::Impl::answer(std::unique_ptr<Job> job, Result<FetchedObject> result) {
  if (job->race) {
    const bool is_final = result.ok() || result.status().code() != Code::kCancelled;
    if (!job->race->finish(is_final)) return;
    if (job->is_hedge && result.ok()) counters_.n_hedges_won.add(1);
  }
  if (cache_) cache_->settle_answer(*job, result);
  if (job->shared) answer_followers(shared_.end(*job), result);
  count(result);
  job->done(std::move(result));
}

void Fetcher::Impl::answer_followers(std::vector<SharedRead::Follower> followers, const Result<FetchedObject>& result) {
  for (SharedRead::Follower& follower : followers) {
    // Stopped, or without room for the answer: no matter of those who joined.
    const Code code = result.ok() ? Code::kOk : result.status().code();
    const bool is_its_own = code == Code::kCancelled || code == Code::kExhausted;
    if (is_its_own && !follower.request.stop.stop_requested() && !is_closing_.load(std::memory_order_acquire)) {
      counters_.n_submitted.add(-1);
      submit(std::move(follower.request), std::move(follower.done));
      continue;
    }
    Result<FetchedObject> own = result.ok() ? copy_of(*result, follower.request.lease_for) : result.status();
    count(own);
    follower.done(std::move(own));
  }
}

void Fetcher::Impl::count(const Result<FetchedObject>& result) {
  (result.ok() ? counters_.n_succeeded : counters_.n_failed).add(1);
  if (result.ok()) counters_.n_bytes.add(static_cast<std::int64_t>(result->bytes.size()));
}

void Fetcher::Impl::stop() {
  MutexLock lock(stop_mu_);  // whoever comes second waits until it is done
  if (is_stopped_) return;
  is_stopped_ = true;
  is_closing_.store(true, std::memory_order_release);
  for (Lane* lane : {&network_, &local_}) lane->close();
  for (auto& loop : loops_) loop->stop();
  names_.stop();
  pool_.stop();
  if (cache_) cache_->stop();
  s3_->stop();
}

void Fetcher::Impl::set_concurrency(int concurrency) {
  network_.set_limit(fit_to_descriptors(std::clamp(concurrency, 1, kMaxConcurrency)));
}

FetchStats Fetcher::Impl::stats() const {
  FetchStats s;
  s.n_submitted = counters_.n_submitted.get();
  s.n_succeeded = counters_.n_succeeded.get();
  s.n_failed = counters_.n_failed.get();
  s.n_shared = counters_.n_shared.get();
  s.n_retries = counters_.n_retries.get();
  s.n_hedges = counters_.n_hedges.get();
  s.n_hedges_won = counters_.n_hedges_won.get();
  s.n_throttled = counters_.n_throttled.get();
  for (int i = 0; i < kNumReasons; ++i) {
    if (const std::int64_t n = counters_.failed_tries[static_cast<std::size_t>(i)].get(); n > 0) {
      s.failed_tries[static_cast<Reason>(i)] = n;
    }
  }
  s.n_wire_bytes = counters_.n_wire_bytes.get();
  s.n_bytes = counters_.n_bytes.get();
  s.busy_ns = counters_.busy_ns.get();
  for (const Lane* lane : {&network_, &local_}) {
    const JobQueue::Counts counts = lane->queue.counts();
    s.n_waiting += counts.n_waiting;
    s.n_retrying += counts.n_retrying;
    s.n_in_flight += counts.n_in_flight;
  }
  s.limit = network_.queue.counts().limit;
  if (cache_) s.cache = cache_->stats();
  return s;
}

Result<std::unique_ptr<Fetcher>> Fetcher::create(FetchSettings settings, const Clock& clock) {
  STOKER_CHECKED(check(settings));
  STOKER_TRY(std::unique_ptr<S3Store> s3, S3Store::create(settings.storage, clock));
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
std::optional<PendingFetch> Fetcher::first_pending() const { return impl_->first_pending(); }

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

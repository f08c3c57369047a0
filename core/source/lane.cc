#include "source/lane.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/log.h"
#include "base/rng.h"

namespace stoker {
namespace {

constexpr int kMaxTriesForFree = 4;  // per request: tries after something was learned, without backoff

// Reasons that mean wrong settings when nothing was ever read, and trouble of the moment when something was.
bool is_about_settings(Reason reason) {
  return reason == Reason::kFetchCredentials || reason == Reason::kFetchDenied || reason == Reason::kFetchRedirect ||
         reason == Reason::kFetchTls;
}

}  // namespace

Lane::Lane(const FetchSettings& settings, int start, int maximum, std::uint64_t jitter_seed, const Clock& clock,
           FetchCounters& counters, Answer answer)
    : queue(std::min(start, maximum)),
      settings_(settings),
      jitter_seed_(jitter_seed),
      clock_(clock),
      counters_(counters),
      answer_(std::move(answer)),
      limit_(start, maximum),
      maximum_(maximum),
      hedges_(settings.hedge_share) {}

int Lane::prefix_of(const Job& job) {
  MutexLock lock(mu_);
  const int number = prefixes_.number_of(job.at);
  while (prefix_limits_.size() <= static_cast<std::size_t>(number)) prefix_limits_.emplace_back(maximum_);
  return number;
}

void Lane::push(std::unique_ptr<Job> job) {
  if (job->n_tries == 0) job->prefix = prefix_of(*job);
  if (auto refused = queue.push(std::move(job)))
    answer_(std::move(refused), Status(Reason::kStopped, "the fetcher was stopped"));
}

void Lane::push_later(std::unique_ptr<Job> job, Nanos due) {
  if (auto refused = queue.push_later(std::move(job), due))
    answer_(std::move(refused), Status(Reason::kStopped, "the fetcher was stopped"));
}

void Lane::close() {
  for (auto& job : queue.close()) answer_(std::move(job), Status(Reason::kStopped, "the fetcher was stopped"));
}

void Lane::settle(int worker, std::unique_ptr<Job> job, Outcome outcome) {
  const JobQueue::Released was = queue.release(worker, job->prefix);
  ++job->n_tries;
  counters_.n_wire_bytes.add(static_cast<std::int64_t>(outcome.n_wire_bytes));
  if (outcome.status.ok()) {
    note_success(*job, outcome, was);
    counters_.busy_ns.add(outcome.took.count());
    outcome.object.first_byte = outcome.first_byte.value_or(outcome.took);
    outcome.object.took = outcome.took;
    answer_(std::move(job), std::move(outcome.object));
    return;
  }
  if (job->race && job->race->is_over()) {
    // Of a request that lost its race the time is known from below only; left out, the tail would look too short.
    MutexLock lock(mu_);
    note_latency(outcome.took);
  }
  if (outcome.is_throttled) note_throttled(*job, was);
  if (outcome.status.code() != Code::kCancelled) {
    counters_.failed_tries[static_cast<std::size_t>(outcome.status.reason())].add(1);
  }
  // A second request that finds no room beside the first is none.
  if (outcome.status.code() == Code::kExhausted && job->race && job->race->leave()) return;
  if (outcome.status.code() != Code::kUnavailable) {
    // A store that says "no such object" works.
    if (outcome.status.code() == Code::kBadSample) note_success(*job, outcome, was);
    answer_(std::move(job), std::move(outcome.status));
    return;
  }
  retry_or_fail(std::move(job), std::move(outcome));
}

void Lane::hedge(Job& job) {
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
  second->shared = job.shared;
  second->kept = job.kept;
  counters_.n_hedges.add(1);
  push(std::move(second));
}

void Lane::note_success(const Job& job, const Outcome& outcome, const JobQueue::Released& was) {
  const Nanos now = clock_.now();
  std::string line;
  int limit = 0;
  int prefix_limit = 0;
  {
    MutexLock lock(mu_);
    line = watch_.succeeded(now);
    limit_.answered(now, outcome.object.bytes.size(), was.is_binding);
    limit = limit_.get();
    ThrottleLimit& of_prefix = prefix_limits_[static_cast<std::size_t>(job.prefix)];
    of_prefix.succeeded();
    prefix_limit = of_prefix.get() < maximum_ ? of_prefix.get() : INT_MAX;
    if (outcome.status.ok() && outcome.first_byte) note_latency(*outcome.first_byte);
  }
  queue.set_limit(limit);
  queue.set_prefix_limit(job.prefix, prefix_limit);
  if (!line.empty()) log(LogLevel::kWarning, line);
}

void Lane::note_throttled(const Job& job, const JobQueue::Released& was) {
  counters_.n_throttled.add(1);
  int limit = 0;
  int prefix_limit = 0;
  std::string line;
  {
    const Nanos now = clock_.now();
    MutexLock lock(mu_);
    limit_.throttled(now);
    limit = limit_.get();
    ThrottleLimit& of_prefix = prefix_limits_[static_cast<std::size_t>(job.prefix)];
    const bool is_first = of_prefix.get() >= maximum_;
    const bool fell = of_prefix.throttled(now, was.n_in_prefix);
    prefix_limit = of_prefix.get();
    if (fell && is_first) {
      line = fmt::format("fetch: \"{}\" asks to slow down: {} requests in flight there instead of {}",
                         prefixes_.name(job.prefix), prefix_limit, was.n_in_prefix);
    }
  }
  queue.set_limit(limit);
  queue.set_prefix_limit(job.prefix, prefix_limit);
  if (!line.empty()) log(LogLevel::kInfo, line);
}

void Lane::note_latency(Nanos first_byte) {
  hedges_.answered(first_byte);
  hedge_delay_ns_.store(hedges_.delay().count(), std::memory_order_relaxed);
}

bool Lane::note_failure(const Job& job, const Outcome& outcome) {
  const Nanos now = clock_.now();
  std::string line;
  bool ever_succeeded = false;
  {
    MutexLock lock(mu_);
    line = watch_.failed(now, outcome.status, job.at.shown(), settings_.outage_limit_s);
    ever_succeeded = watch_.ever_succeeded();
  }
  if (!line.empty()) log(LogLevel::kWarning, line);
  return ever_succeeded;
}

void Lane::retry_or_fail(std::unique_ptr<Job> job, Outcome outcome) {
  if (job->race) {
    if (job->race->leave()) return;
    job->race.reset();  // the other one failed before: this is now the only one
  }
  job->partial = std::move(outcome.partial);
  const Nanos now = clock_.now();
  if (outcome.try_again_now && job->n_tries - job->n_failures <= kMaxTriesForFree) {
    counters_.n_retries.add(1);
    return push(std::move(job));
  }
  ++job->n_failures;
  if (!job->failing_since) job->failing_since = now;
  const bool ever_succeeded = note_failure(*job, outcome);
  if (is_about_settings(outcome.status.reason()) && !ever_succeeded) {
    answer_(std::move(job), std::move(outcome.status));
    return;
  }
  const Nanos limit =
      std::chrono::duration_cast<Nanos>(std::chrono::duration<double>(std::min(settings_.outage_limit_s, 1e9)));
  const Nanos end = *job->failing_since + limit;
  if (now >= end) {
    // Before the job is moved from: compilers differ in which argument they evaluate first.
    Status gave_up(Reason::kOutage,
                   fmt::format("gave up after {:.3g} s and {} tries; last: {}", to_seconds(now - *job->failing_since),
                               job->n_tries, outcome.status.to_string()));
    answer_(std::move(job), std::move(gave_up));
    return;
  }
  counters_.n_retries.add(1);
  Rng rng(mix64(jitter_seed_ ^ job->sequence) + static_cast<std::uint64_t>(job->n_failures));
  // Nothing is overloaded while keys are looked for: the wait need not grow.
  const int n_failures = outcome.status.reason() == Reason::kFetchKeysPending ? 1 : job->n_failures;
  push_later(std::move(job), std::min(now + backoff(settings_.retry, n_failures, outcome.retry_after, rng), end));
}

void Lane::set_limit(int limit) {
  std::vector<int> of_prefixes;
  {
    MutexLock lock(mu_);
    limit_.set(limit);
    maximum_ = limit;
    for (ThrottleLimit& of_prefix : prefix_limits_) {
      of_prefix.set_maximum(limit);
      of_prefixes.push_back(of_prefix.get() < limit ? of_prefix.get() : INT_MAX);
    }
  }
  queue.set_limit(limit);
  for (std::size_t i = 0; i < of_prefixes.size(); ++i) queue.set_prefix_limit(static_cast<int>(i), of_prefixes[i]);
}

}  // namespace stoker

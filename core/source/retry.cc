#include "source/retry.h"

#include <fmt/format.h>

namespace stoker {

Nanos backoff(const FetchRetry& retry, int n_failures, std::optional<Nanos> retry_after, Rng& rng) {
  const Nanos base = retry.base;
  const Nanos cap = retry.cap;
  Nanos ceiling = base;
  for (int i = 1; i < n_failures && ceiling < cap; ++i) ceiling *= 2;
  ceiling = std::min(ceiling, cap);
  const auto jittered = Nanos(static_cast<std::int64_t>(static_cast<double>(ceiling.count()) * rng.uniform()));
  // On top, not instead: a store that tells everybody "1 second" would get everybody back in the same instant.
  return jittered + retry_after.value_or(Nanos(0));
}

std::string StoreWatch::failed(Nanos now, const Status& why, std::string_view url, double outage_limit_s) {
  if (!failing_since_) failing_since_ = now;
  ++n_failures_;
  if (n_failures_ < 3 || now - *failing_since_ < kPatience) return "";
  if (told_at_ && now - *told_at_ < kInterval) return "";
  told_at_ = now;
  return fmt::format(
      "storage does not answer since {:.0f} s ({} failed tries, last {}: {}); retrying, a request ends after {:.0f} s",
      to_seconds(now - *failing_since_), n_failures_, url, why.to_string(), outage_limit_s);
}

std::string StoreWatch::succeeded(Nanos now) {
  ever_succeeded_ = true;
  std::string line;
  if (told_at_) line = fmt::format("storage is back after {:.0f} s", to_seconds(now - *failing_since_));
  failing_since_.reset();
  told_at_.reset();
  n_failures_ = 0;
  return line;
}

}  // namespace stoker

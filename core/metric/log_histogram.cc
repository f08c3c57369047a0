#include "metric/log_histogram.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace stoker {
namespace {

// Foreign numbers: a sum of absurd lengths stays at the largest number instead of wrapping round.
std::int64_t saturating_sum(std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
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

}  // namespace stoker

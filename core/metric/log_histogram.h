#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace stoker {

/// Counts of whole numbers in buckets that grow by a quarter of an octave: constant memory, whatever comes.
class LogHistogram {
 public:
  void add(std::int64_t value);
  void merge(const LogHistogram& other);

  struct Bucket {
    std::int64_t begin = 0, end = 0;  ///< half-open
    std::int64_t n = 0;
  };
  /// Those that are not empty, ascending.
  std::vector<Bucket> buckets() const;
  std::int64_t n() const { return n_; }
  std::int64_t total() const { return total_; }
  std::int64_t least() const { return n_ == 0 ? 0 : least_; }
  std::int64_t most() const { return most_; }
  /// The end of the bucket in which that share of all values is reached, at most `most()`.
  std::int64_t quantile(double share) const;

 private:
  static constexpr std::size_t kBuckets = 4 * 63;
  static std::int64_t begin_of(std::size_t bucket);

  std::array<std::int64_t, kBuckets> counts_{};
  std::int64_t n_ = 0, total_ = 0, least_ = 0, most_ = 0;
};

}  // namespace stoker

#pragma once

#include <compare>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <stop_token>
#include <utility>

#include "base/mutex.h"
#include "base/result.h"

namespace stoker {

/// Where something stands in the plan. What is delivered next is smallest.
struct PlanPosition {
  std::uint64_t pack = 0;  ///< running number of the pack on this rank
  std::uint64_t ticket = 0;
  auto operator<=>(const PlanPosition&) const = default;
};

class MemoryBudget;

/// So many bytes of the budget; given back when destroyed. Move-only.
class Lease {
 public:
  Lease() = default;
  ~Lease() { release(); }
  Lease(Lease&& other) noexcept : budget_(std::move(other.budget_)), bytes_(std::exchange(other.bytes_, 0)) {}
  Lease& operator=(Lease&& other) noexcept {
    if (this != &other) {
      release();
      budget_ = std::move(other.budget_);
      bytes_ = std::exchange(other.bytes_, 0);
    }
    return *this;
  }
  std::size_t bytes() const { return bytes_; }
  void release();
  /// Divides the lease: the first `n_bytes` and the rest, each given back on its own.
  std::pair<Lease, Lease> split(std::size_t n_bytes) &&;

 private:
  friend class MemoryBudget;
  Lease(std::shared_ptr<MemoryBudget> budget, std::size_t bytes) : budget_(std::move(budget)), bytes_(bytes) {}

  std::shared_ptr<MemoryBudget> budget_;
  std::size_t bytes_ = 0;
};

/// Bounds the payload bytes alive in the engine at one time, over all stages. Held by shared_ptr because a batch, and
/// its lease with it, may outlive the loader.
class MemoryBudget : public std::enable_shared_from_this<MemoryBudget> {
 public:
  explicit MemoryBudget(std::size_t limit_bytes) : limit_bytes_(limit_bytes) {}

  /// Waits until `n_bytes` fit. Granted in plan order: what is delivered next never waits behind what comes later.
  /// @return kBudget if `n_bytes` exceeds the limit (it could never fit); kStopped once `stop` is requested.
  /// Threads: any. Blocks.
  Result<Lease> acquire(std::size_t n_bytes, PlanPosition at, std::stop_token stop) STOKER_EXCLUDES(mu_);

  std::size_t limit_bytes() const { return limit_bytes_; }
  std::size_t in_use_bytes() const STOKER_EXCLUDES(mu_);
  std::size_t peak_bytes() const STOKER_EXCLUDES(mu_);
  std::size_t n_waiting() const STOKER_EXCLUDES(mu_);

 private:
  friend class Lease;
  void give_back(std::size_t n_bytes) STOKER_EXCLUDES(mu_);

  const std::size_t limit_bytes_;

  mutable Mutex mu_;
  std::condition_variable_any changed_;
  std::size_t in_use_bytes_ STOKER_GUARDED_BY(mu_) = 0;
  std::size_t peak_bytes_ STOKER_GUARDED_BY(mu_) = 0;
  std::uint64_t next_ticket_ STOKER_GUARDED_BY(mu_) = 0;
  std::set<PlanPosition> waiting_ STOKER_GUARDED_BY(mu_);
};

}  // namespace stoker

#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
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
  /// Joins another lease of the same budget to this one.
  void add(Lease other);

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
  using Granted = std::function<void(Lease)>;

  explicit MemoryBudget(std::size_t limit_bytes) : limit_bytes_(limit_bytes) {}

  /// Waits until `n_bytes` fit. Granted in plan order: what is delivered next never waits behind what comes later.
  /// @return kBudget if `n_bytes` exceeds the limit (it could never fit); kStopped once `stop` is requested.
  /// Threads: any. Blocks.
  Result<Lease> acquire(std::size_t n_bytes, PlanPosition at, std::stop_token stop) STOKER_EXCLUDES(mu_);
  /// The same without a thread that waits: `granted` is called with the lease, at once or by whoever gives bytes back.
  /// It must be cheap. More than the limit is granted when nobody holds anything: it goes alone.
  void acquire_later(std::size_t n_bytes, PlanPosition at, Granted granted) STOKER_EXCLUDES(mu_);
  /// What fits now and nobody waits for, or nothing.
  std::optional<Lease> try_acquire(std::size_t n_bytes) STOKER_EXCLUDES(mu_);
  /// Forgets those that wait for `acquire_later`, now and later on: their callbacks are dropped.
  void close() STOKER_EXCLUDES(mu_);

  std::size_t limit_bytes() const { return limit_bytes_; }
  std::size_t in_use_bytes() const STOKER_EXCLUDES(mu_);
  std::size_t peak_bytes() const STOKER_EXCLUDES(mu_);
  std::size_t n_waiting() const STOKER_EXCLUDES(mu_);

 private:
  friend class Lease;
  struct Waiter {
    std::size_t n_bytes = 0;
    Granted granted;
  };
  void give_back(std::size_t n_bytes) STOKER_EXCLUDES(mu_);
  Lease take(std::size_t n_bytes) STOKER_REQUIRES(mu_);
  void call_granted() STOKER_EXCLUDES(mu_);

  const std::size_t limit_bytes_;

  mutable Mutex mu_;
  std::size_t in_use_bytes_ STOKER_GUARDED_BY(mu_) = 0;
  std::size_t peak_bytes_ STOKER_GUARDED_BY(mu_) = 0;
  std::uint64_t next_ticket_ STOKER_GUARDED_BY(mu_) = 0;
  std::map<PlanPosition, Waiter> waiting_ STOKER_GUARDED_BY(mu_);
  bool is_calling_ STOKER_GUARDED_BY(mu_) = false;  // one thread calls back at a time, and never from within a callback
  bool is_closed_ STOKER_GUARDED_BY(mu_) = false;
};

}  // namespace stoker

#include "mem/budget.h"

#include <algorithm>
#include <condition_variable>
#include <string>

namespace stoker {

void Lease::release() {
  // First empty: giving back calls others, who may move this lease.
  const std::shared_ptr<MemoryBudget> budget = std::move(budget_);
  const std::size_t n_bytes = std::exchange(bytes_, 0);
  if (budget) budget->give_back(n_bytes);
}

std::pair<Lease, Lease> Lease::split(std::size_t n_bytes) && {
  const std::size_t rest = bytes_ - n_bytes;
  bytes_ = 0;
  std::shared_ptr<MemoryBudget> budget = std::move(budget_);
  return {Lease(budget, n_bytes), Lease(budget, rest)};
}

void Lease::add(Lease other) {
  bytes_ += std::exchange(other.bytes_, 0);
  if (!budget_) budget_ = std::move(other.budget_);
  other.budget_.reset();
}

Lease MemoryBudget::take(std::size_t n_bytes) {
  in_use_bytes_ += n_bytes;
  peak_bytes_ = std::max(peak_bytes_, in_use_bytes_);
  return {shared_from_this(), n_bytes};
}

Result<Lease> MemoryBudget::acquire(std::size_t n_bytes, PlanPosition at, std::stop_token stop) {
  if (n_bytes > limit_bytes_) {
    return Status(Reason::kBudget,
                  std::to_string(n_bytes) + " bytes wanted, the limit is " + std::to_string(limit_bytes_));
  }
  // Shared: it may be granted in the moment in which this thread gives up.
  struct Place {
    Mutex mu;
    std::condition_variable_any arrived;
    std::optional<Lease> lease STOKER_GUARDED_BY(mu);
  };
  auto place = std::make_shared<Place>();
  {
    MutexLock lock(mu_);
    at.ticket = next_ticket_++;
    waiting_.emplace(at, Waiter{n_bytes, [place](Lease lease) {
                                  MutexLock inner(place->mu);
                                  place->lease = std::move(lease);
                                  place->arrived.notify_all();
                                }});
  }
  call_granted();
  {
    MutexLock lock(place->mu);
    place->arrived.wait(lock, stop, [&]() STOKER_NO_ANALYSIS { return place->lease.has_value(); });
    if (place->lease) return *std::move(place->lease);
  }
  {
    MutexLock lock(mu_);
    waiting_.erase(at);
  }
  call_granted();  // others may have waited behind this one
  return Status(Reason::kStopped, "stopped while waiting for memory");
}

void MemoryBudget::acquire_later(std::size_t n_bytes, PlanPosition at, Granted granted) {
  {
    MutexLock lock(mu_);
    if (is_closed_) return;
    at.ticket = next_ticket_++;
    waiting_.emplace(at, Waiter{n_bytes, std::move(granted)});
  }
  call_granted();
}

std::optional<Lease> MemoryBudget::try_acquire(std::size_t n_bytes) {
  MutexLock lock(mu_);
  if (!waiting_.empty() || in_use_bytes_ + n_bytes > limit_bytes_) return std::nullopt;
  return take(n_bytes);
}

// A callback may give bytes back, which grants more, and so on: all in this loop, not one inside the other.
void MemoryBudget::call_granted() {
  for (;;) {
    Granted granted;
    Lease lease;
    {
      MutexLock lock(mu_);
      if (is_calling_ || waiting_.empty()) return;
      const auto first = waiting_.begin();
      const std::size_t n_bytes = first->second.n_bytes;
      if (in_use_bytes_ > 0 && in_use_bytes_ + n_bytes > limit_bytes_) return;
      granted = std::move(first->second.granted);
      waiting_.erase(first);
      lease = take(n_bytes);
      is_calling_ = true;
    }
    granted(std::move(lease));
    granted = nullptr;  // may hold the last reference to a lease
    MutexLock lock(mu_);
    is_calling_ = false;
  }
}

void MemoryBudget::give_back(std::size_t n_bytes) {
  {
    MutexLock lock(mu_);
    in_use_bytes_ -= n_bytes;
  }
  call_granted();
}

void MemoryBudget::close() {
  std::map<PlanPosition, Waiter> dropped;
  MutexLock lock(mu_);
  is_closed_ = true;
  dropped.swap(waiting_);
}

std::size_t MemoryBudget::in_use_bytes() const {
  MutexLock lock(mu_);
  return in_use_bytes_;
}

std::size_t MemoryBudget::peak_bytes() const {
  MutexLock lock(mu_);
  return peak_bytes_;
}

std::size_t MemoryBudget::n_waiting() const {
  MutexLock lock(mu_);
  return waiting_.size();
}

}  // namespace stoker

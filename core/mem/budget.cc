#include "mem/budget.h"

#include <algorithm>
#include <string>

namespace stoker {

void Lease::release() {
  if (budget_) {
    budget_->give_back(bytes_);
    budget_.reset();
    bytes_ = 0;
  }
}

std::pair<Lease, Lease> Lease::split(std::size_t n_bytes) && {
  const std::size_t rest = bytes_ - n_bytes;
  bytes_ = 0;
  std::shared_ptr<MemoryBudget> budget = std::move(budget_);
  return {Lease(budget, n_bytes), Lease(budget, rest)};
}

Result<Lease> MemoryBudget::acquire(std::size_t n_bytes, PlanPosition at, std::stop_token stop) {
  if (n_bytes > limit_bytes_) {
    return Status(Reason::kBudget,
                  std::to_string(n_bytes) + " bytes wanted, the limit is " + std::to_string(limit_bytes_));
  }
  MutexLock lock(mu_);
  at.ticket = next_ticket_++;
  waiting_.insert(at);
  const bool granted = changed_.wait(lock, stop, [&]() STOKER_NO_ANALYSIS {
    return *waiting_.begin() == at && in_use_bytes_ + n_bytes <= limit_bytes_;
  });
  waiting_.erase(at);
  if (!granted) {
    changed_.notify_all();
    return Status(Reason::kStopped, "stopped while waiting for memory");
  }
  in_use_bytes_ += n_bytes;
  peak_bytes_ = std::max(peak_bytes_, in_use_bytes_);
  changed_.notify_all();  // the next in order may fit too; there are only a handful of waiters
  return Lease(shared_from_this(), n_bytes);
}

void MemoryBudget::give_back(std::size_t n_bytes) {
  MutexLock lock(mu_);
  in_use_bytes_ -= n_bytes;
  changed_.notify_all();
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

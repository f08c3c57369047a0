#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <optional>
#include <stop_token>
#include <utility>

#include "base/mutex.h"
#include "metric/metric.h"

namespace stoker {

/// First in, first out, at most `capacity` items. Threads: any.
template <typename T>
class BoundedQueue {
 public:
  BoundedQueue(std::size_t capacity, const Clock& clock) : clock_(clock), capacity_(capacity) {}

  /// Waits for room. @return false once `stop` is requested; the item is dropped then.
  bool push(T item, std::stop_token stop) STOKER_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (!room_.wait(lock, stop, [this]() STOKER_NO_ANALYSIS { return items_.size() < capacity_; })) return false;
    items_.push_back(std::move(item));
    occupancy_.changed(static_cast<std::int64_t>(items_.size()), clock_.now());
    arrived_.notify_one();
    return true;
  }

  /// Waits for an item. @return nothing once `stop` is requested, or it is closed and empty.
  std::optional<T> pop(std::stop_token stop) STOKER_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    arrived_.wait(lock, stop, [this]() STOKER_NO_ANALYSIS { return is_closed_ || !items_.empty(); });
    return take();
  }
  /// The same, or nothing if none came in time.
  std::optional<T> pop_within(std::chrono::milliseconds timeout) STOKER_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    arrived_.wait_for(lock, timeout, [this]() STOKER_NO_ANALYSIS { return is_closed_ || !items_.empty(); });
    return take();
  }

  /// Nothing will be pushed any more: pops give what is left, and do not wait.
  void close() STOKER_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    is_closed_ = true;
    arrived_.notify_all();
  }

  /// May change while the queue is in use; a smaller value takes effect as items leave.
  void set_capacity(std::size_t capacity) STOKER_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    capacity_ = capacity;
    room_.notify_all();
  }

  std::size_t size() const STOKER_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    return items_.size();
  }
  /// Item-nanoseconds so far: divided by elapsed time, the mean length.
  std::int64_t occupancy_integral() const { return occupancy_.integral(); }

 private:
  std::optional<T> take() STOKER_REQUIRES(mu_) {
    if (items_.empty()) return std::nullopt;
    std::optional<T> item(std::move(items_.front()));
    items_.pop_front();
    occupancy_.changed(static_cast<std::int64_t>(items_.size()), clock_.now());
    room_.notify_one();
    return item;
  }

  const Clock& clock_;
  Occupancy occupancy_;  // written under mu_, read by anybody

  mutable Mutex mu_;
  std::condition_variable_any room_;
  std::condition_variable_any arrived_;
  std::size_t capacity_ STOKER_GUARDED_BY(mu_);
  std::deque<T> items_ STOKER_GUARDED_BY(mu_);
  bool is_closed_ STOKER_GUARDED_BY(mu_) = false;
};

}  // namespace stoker

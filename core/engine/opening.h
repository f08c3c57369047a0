#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>

#include "base/mutex.h"
#include "base/result.h"

namespace stoker {

/// Opens something on a thread of its own, and says how far it is. Threads: any, except begin() and end().
class Opening {
 public:
  using Say = std::function<void(std::string_view)>;
  using Work = std::function<Status(const std::stop_token& stop, const Say& say)>;

  Opening() = default;
  ~Opening() { end(); }
  Opening(const Opening&) = delete;
  Opening& operator=(const Opening&) = delete;

  /// Once. What `work` has written can be read after within() or check() said that it is done.
  void begin(Work work) STOKER_EXCLUDES(mu_);
  /// @return Whether it is done; what it failed of.
  Result<bool> within(std::chrono::milliseconds timeout) STOKER_EXCLUDES(mu_);
  /// @return STATE while it is not done; what it failed of.
  Status check() const STOKER_EXCLUDES(mu_);
  /// What it is doing, for people; empty when there is nothing to say.
  std::string progress() const STOKER_EXCLUDES(mu_);
  /// Asks it to stop.
  void request_stop() { thread_.request_stop(); }
  std::stop_token stop_token() const { return thread_.get_stop_token(); }
  /// The same, and waits for it. Repeatable.
  void end();
  /// In a forked child, which has no such thread: forgets it.
  void abandon();

 private:
  mutable Mutex mu_;
  std::condition_variable_any changed_;
  bool is_done_ STOKER_GUARDED_BY(mu_) = false;
  Status status_ STOKER_GUARDED_BY(mu_);
  std::string progress_ STOKER_GUARDED_BY(mu_);
  std::jthread thread_;
};

}  // namespace stoker

#include "engine/opening.h"

#include <utility>

#include "exec/cpu.h"

namespace stoker {

void Opening::begin(Work work) {
  thread_ = std::jthread([this, work = std::move(work)](const std::stop_token& stop) {
    become_background_thread("stoker-open");
    Status status = work(stop, [this](std::string_view line) {
      MutexLock lock(mu_);
      progress_ = line;
    });
    MutexLock lock(mu_);
    status_ = std::move(status);
    progress_.clear();
    is_done_ = true;
    changed_.notify_all();
  });
}

Result<bool> Opening::within(std::chrono::milliseconds timeout) {
  MutexLock lock(mu_);
  changed_.wait_for(lock, timeout, [this]() STOKER_NO_ANALYSIS { return is_done_; });
  if (is_done_ && !status_.ok()) return status_;
  return is_done_;
}

Status Opening::check() const {
  MutexLock lock(mu_);
  if (!is_done_) return Status(Reason::kState, "model and data are not open yet");
  return status_;
}

std::string Opening::progress() const {
  MutexLock lock(mu_);
  return progress_;
}

void Opening::abandon() {
  if (thread_.joinable()) thread_.detach();
}

void Opening::end() {
  thread_.request_stop();
  if (thread_.joinable()) thread_.join();
}

}  // namespace stoker

#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>

#include "base/mutex.h"
#include "base/result.h"
#include "manifest/files.h"

namespace stoker {

struct ClaimTimes {
  std::chrono::milliseconds beat{500};    ///< how often a holder shows that it lives
  std::chrono::milliseconds lease{3000};  ///< a claim without a beat for so long is taken over
  std::chrono::milliseconds look{100};    ///< how often those who wait look
};

/// A piece of work that several processes, threads or nodes want done once: whoever holds the claim does it, the others
/// wait for its result.
///
/// The claim is a file beside the result. Its holder counts up a number in it, on a thread of its own; whoever waits
/// and sees the same number for the length of a lease, by its own clock, takes the claim over, so that a killed holder
/// holds up nobody for long. All it saves is work: two may do it at once after one was stopped and went on, so the
/// result must be put in place atomically, and be the same whoever makes it.
///
/// Made for shared file systems: one exclusive creation, and files are opened anew for each look.
class Claim {
 public:
  /// Waits until the claim is held, or `is_done` says that the work is.
  /// @param on_wait  Gets the holder's progress, now and then.
  /// @return null if it is done; INDEX_DIR if no file can be made at `path`; STOPPED, within a tenth of a second.
  static Result<std::unique_ptr<Claim>> take(
      const std::string& path, const std::function<bool()>& is_done,
      const std::function<void(std::uint64_t n_done, std::uint64_t n_all)>& on_wait, const std::stop_token& stop,
      const ClaimTimes& times = {});

  /// Gives it back.
  ~Claim();
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;

  /// For those who wait. Threads: any.
  void tell(std::uint64_t n_done, std::uint64_t n_all) STOKER_EXCLUDES(mu_);

 private:
  Claim(std::string path, FileHandle file, std::string token, std::chrono::milliseconds beat);
  void write(std::uint64_t n_beats) STOKER_EXCLUDES(mu_);

  const std::string path_;
  const FileHandle file_;
  const std::string token_;

  Mutex mu_;
  std::uint64_t n_done_ STOKER_GUARDED_BY(mu_) = 0;
  std::uint64_t n_all_ STOKER_GUARDED_BY(mu_) = 0;

  std::jthread beating_;  // last: stops before what it uses is gone
};

}  // namespace stoker

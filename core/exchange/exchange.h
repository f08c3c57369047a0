#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/result.h"
#include "exchange/store.h"

namespace stoker {

/// What came of asking for a claim.
struct Claimed {
  bool is_mine = false;
  std::string holder;          ///< of another's: who
  bool is_taken_over = false;  ///< mine, from a holder who was silent
};

/// What the ranks of one run tell each other, in one space of a store.
///
/// Claims are hints that spare work and never decide what comes out: two ranks may hold one at the same time where a
/// store is slow to show what it has. Their leases are measured by the clock of whoever waits: a claim whose value did
/// not change for so long is free, so clocks need not agree.
///
/// Threads: any. Errors as of ValueStore.
class Exchange {
 public:
  /// @param owner  This rank, for people: one line, at most 100 bytes.
  Exchange(std::unique_ptr<ValueStore> store, std::string space, const std::string& owner, const Clock& clock);

  /// The first to put wins. @return What is there now.
  Result<std::string> put(std::uint64_t window, const std::string& name, const std::string& value,
                          std::stop_token stop);
  Result<std::optional<std::string>> get(std::uint64_t window, const std::string& name, std::stop_token stop) {
    return wait(window, name, std::chrono::milliseconds(0), std::move(stop));
  }
  /// Waits at most `timeout`, perhaps less.
  Result<std::optional<std::string>> wait(std::uint64_t window, const std::string& name,
                                          std::chrono::milliseconds timeout, std::stop_token stop);

  /// Asks for a claim. One that is held by another becomes free when it was not renewed for `lease`, counted from when
  /// it was first asked for here.
  Result<Claimed> claim(std::uint64_t window, const std::string& name, Nanos lease, std::stop_token stop)
      STOKER_EXCLUDES(mu_);
  /// Shows that the holder lives. @return false if the claim is another's by now, or gone.
  Result<bool> renew(std::uint64_t window, const std::string& name, std::stop_token stop) STOKER_EXCLUDES(mu_);

  /// This rank, and every rank that keeps step with it, is past the windows before this one.
  Status drop_before(std::uint64_t window, std::stop_token stop) STOKER_EXCLUDES(mu_);

  /// The same in another space: for what ranks tell each other who may not share one.
  Result<std::string> put_in(const std::string& space, const std::string& name, const std::string& value,
                             std::stop_token stop);
  Result<std::optional<std::string>> wait_in(const std::string& space, const std::string& name,
                                             std::chrono::milliseconds timeout, std::stop_token stop);

  const std::string& space() const { return space_; }
  std::string describe() const { return store_->describe(); }
  std::string left_by(const std::string& space) const { return store_->left_by(space); }

 private:
  struct Seen {
    std::string value;
    Nanos since{0};
  };
  using ClaimKey = std::pair<std::uint64_t, std::string>;
  std::string next_value() STOKER_EXCLUDES(mu_);

  const std::unique_ptr<ValueStore> store_;
  const std::string space_;
  const std::string owner_;  // with random digits: no two have the same
  const Clock& clock_;

  Mutex mu_;
  std::uint64_t n_values_ STOKER_GUARDED_BY(mu_) = 0;
  std::map<ClaimKey, std::string> mine_ STOKER_GUARDED_BY(mu_);  // bounded by drop_before
  std::map<ClaimKey, Seen> seen_ STOKER_GUARDED_BY(mu_);         // of others
};

/// From the system's source of randomness.
std::string random_bytes(std::size_t n_bytes);
std::string random_hex(std::size_t n_bytes);

}  // namespace stoker

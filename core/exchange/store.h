#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>

#include "base/result.h"

namespace stoker {

/// Where a value stands: values of a window go with it, others stay as long as their space.
struct StoreKey {
  static constexpr std::uint64_t kKept = UINT64_MAX;
  static constexpr std::size_t kMostNameBytes = 80;

  std::string space;  ///< who shares: [a-z0-9-], 1 to 80 bytes
  std::uint64_t window = kKept;
  std::string name;  ///< [a-z0-9-], 1 to 80 bytes

  auto operator<=>(const StoreKey&) const = default;
  bool is_valid() const;
};

/// Small named byte strings that several ranks see: the one thing that the kinds of exchange differ in. A value is
/// never empty: an empty one stands for none.
///
/// A store may forget a window at any time, and then again lets anybody be first: what is in it must be a pure function
/// of its key, or a hint. Every call ends within a second of a stop.
///
/// Threads: any.
/// @return of every call: SETTINGS if it was never reached or is used wrongly; FETCH_CONNECT if it cannot be reached
/// any more; STOPPED.
class ValueStore {
 public:
  static constexpr std::size_t kMostValueBytes = std::size_t{16} << 20;

  virtual ~ValueStore() = default;

  /// What is there; waits for it at most `wait`, perhaps less.
  virtual Result<std::optional<std::string>> get(const StoreKey& key, std::chrono::milliseconds wait,
                                                 std::stop_token stop) = 0;
  /// Replaces `expected` (empty: nothing) by `desired`. @return What stands there afterwards: `desired`, or what was
  /// there instead; empty if nothing was and something was expected.
  virtual Result<std::string> compare_set(const StoreKey& key, const std::string& expected, const std::string& desired,
                                          std::stop_token stop) = 0;
  /// Nobody of the space wants windows before this one any more.
  virtual Status drop_before(const std::string& space, std::uint64_t window, std::stop_token stop) = 0;
  /// For people: "the folder /x", "rank 0 at 10.0.0.1:23456".
  virtual std::string describe() const = 0;
  /// What to remove so that a space begins anew; empty where nothing outlives the job.
  virtual std::string left_by(const std::string& space) const {
    (void)space;
    return "";
  }
};

}  // namespace stoker

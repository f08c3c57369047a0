#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "exchange/exchange.h"

namespace stoker {

/// Neighbouring places of a window, [first, first + n): what is measured, claimed and told together.
struct MeasureShare {
  std::uint64_t first = 0;
  std::uint64_t n = 0;

  bool operator==(const MeasureShare&) const = default;
};

struct SharingOptions {
  std::int32_t rank = 0;
  std::int32_t n_ranks = 1;
  Nanos lease = std::chrono::seconds(5);       ///< of a claim; it is renewed three times in it
  Nanos most_held = std::chrono::seconds(30);  ///< then others may measure it too
  Nanos tell_after = std::chrono::seconds(5);  ///< of waiting for others
  Nanos alone_for = std::chrono::seconds(30);  ///< after the exchange was lost
  std::chrono::milliseconds look_every = std::chrono::milliseconds(500);  ///< at claims, while waiting
};

/// The shares of a window of `n` places: equal for all ranks, about four for each.
std::vector<MeasureShare> shares_of(std::uint64_t n, std::int32_t n_ranks);

/// Ranks measure a window together: each claims shares, its own place first, measures them and puts what came of it;
/// then it takes shares that nobody claimed or whose owner is silent, and waits for the rest. Where the exchange is
/// lost a rank measures all for itself, and says so. What comes out is the same in every case, as long as measuring is
/// a pure function. Threads: one.
class SharedMeasuring {
 public:
  /// Measures shares. @return One value for each, not empty; whatever ended the run. May be stopped because other ranks
  /// were first.
  using Measure = std::function<Result<std::vector<std::string>>(std::span<const MeasureShare>, std::stop_token)>;
  /// Takes a share's value. @return false for a value that another rank told and that cannot be read: it is measured
  /// here then.
  using Take = std::function<bool(const MeasureShare&, std::string value, bool is_own)>;

  SharedMeasuring(Exchange& exchange, SharingOptions options, const Clock& clock);

  /// Gives `take` each share of the window once. @return What `measure` failed with; SETTINGS, INDEX_DIR of the
  /// exchange; STOPPED.
  Status window(std::uint64_t window, std::uint64_t n, const Measure& measure, const Take& take, std::stop_token stop);

  std::int64_t n_taken_over() const { return n_taken_over_; }
  /// The exchange was lost a short while ago.
  bool is_alone() const { return alone_until_ && clock_.now() < *alone_until_; }

 private:
  struct Window;
  /// Claims up to `most` of what is missing. @return What is to be measured here.
  Result<std::vector<MeasureShare>> claim(Window& at, std::size_t most);
  /// @param is_claimed  Renews the claims meanwhile.
  Status measure(Window& at, const std::vector<MeasureShare>& shares, bool is_claimed);
  Status put(Window& at, const MeasureShare& share, std::string value);
  Status wait(Window& at);
  /// Renews while shares are measured, and ends that when others were first.
  void keep(const Window& at, const std::vector<MeasureShare>& shares, std::stop_source& enough, std::stop_token done);
  /// Whether to go on alone after this: true for an exchange that was lost.
  bool goes_on_alone(const Status& status);
  void tell_of_waiting(Window& at);

  Exchange& exchange_;
  const SharingOptions options_;
  const Clock& clock_;
  std::optional<Nanos> alone_until_;
  std::int64_t n_taken_over_ = 0;
};

}  // namespace stoker

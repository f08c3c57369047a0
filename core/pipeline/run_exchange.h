#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/result.h"
#include "exchange/open.h"
#include "pipeline/measurer.h"
#include "pipeline/plan_comparison.h"
#include "pipeline/settings.h"
#include "pipeline/shared_measuring.h"
#include "plan/order.h"
#include "plan/step.h"

namespace stoker {

/// Words for a header that would have to be read although ranks share nothing; empty where they do, or there is one.
std::string headers_refused(const LoaderSettings& settings);

/// What a rank shares with the others of its run: the measuring of each window, and digests of the plans. With one
/// rank, or without an exchange, it measures alone. Threads: one (the planner's); close() after it.
class RunExchange {
 public:
  RunExchange(const LoaderSettings& settings, std::string fingerprint, const PlanState& start, const Clock& clock);

  /// Opens the exchange and meets the other ranks; waits for rank 0 where its process holds what is shared.
  /// @return SETTINGS, INDEX_DIR, PLAN_MISMATCH, STOPPED.
  Status open(std::stop_token stop);
  /// Measures a window, together with the other ranks. @return As Measurer::measure; SETTINGS, INDEX_DIR.
  Result<std::shared_ptr<MeasuredWindow>> measure(Measurer& measurer, const OrderWindow& window, std::uint64_t priority,
                                                  std::stop_token stop);
  /// Compares a window's plan with the other ranks'. @return PLAN_MISMATCH, SETTINGS, INDEX_DIR, STOPPED.
  Status check(std::uint64_t window, const std::string& digest, std::stop_token stop);
  /// This rank handed on a step whose first pack comes from `window`. Ranks that keep step with it are past what was
  /// begun `n_steps_apart` steps before.
  void handed_on(std::uint64_t step, std::uint64_t window, std::uint64_t n_steps_apart, std::stop_token stop);

  /// Ends its threads; of rank 0 the service that the other ranks ask.
  void close();

 private:
  const LoaderSettings& settings_;
  const RunFacts facts_;
  const Clock& clock_;
  OpenExchange open_;
  std::optional<SharedMeasuring> sharing_;  // absent: alone
  std::optional<PlanComparison> comparison_;
  std::deque<std::pair<std::uint64_t, std::uint64_t>> steps_;  // step, its first window; bounded by n_steps_apart
  std::uint64_t dropped_before_ = 0;
};

}  // namespace stoker

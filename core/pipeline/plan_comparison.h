#pragma once

#include <cstdint>
#include <stop_token>
#include <string>

#include "base/result.h"
#include "exchange/exchange.h"

namespace stoker {

/// What all ranks of a run must have in common.
struct RunFacts {
  std::string fingerprint;  ///< "name=hash ..."
  std::int32_t dp_size = 1;
  std::int32_t packs_per_step = 1;
  std::uint64_t step = 0;  ///< where the run begins, as the next two
  std::uint64_t window = 0;
  std::uint64_t packs_delivered = 0;

  /// The space of an exchange in which ranks of a job with these facts meet, whatever dp_size they think there is.
  std::string space(const std::string& job) const;
};

/// Ranks of one run compare what they run, and then each window's plan. A difference ends every one of them: whoever
/// finds it leaves word for the others, who read it when they plan their next window.
///
/// Nothing is compared while the exchange is lost. Threads: one.
class PlanComparison {
 public:
  /// @param job  What the launcher calls this attempt of the job; empty: not known, so ranks whose settings differ
  /// cannot find each other, and only plans are compared.
  PlanComparison(Exchange& exchange, const std::string& job, RunFacts facts, std::int32_t rank);

  /// Tells the others what this rank runs, and compares it with rank 0's: at once if rank 0 is there, otherwise with
  /// every check(). @return PLAN_MISMATCH, naming what differs; errors of the exchange.
  Status meet(std::stop_token stop);
  /// @return PLAN_MISMATCH if another rank planned this window differently, or found any difference; errors of the
  /// exchange.
  Status check(std::uint64_t window, const std::string& digest, std::stop_token stop);

 private:
  Status tell(std::stop_token stop);
  Status compare_with_rank_0(std::chrono::milliseconds wait, std::stop_token stop);
  Status differ(const std::string& space, std::string why, std::stop_token stop);

  Exchange& exchange_;
  const std::string job_;
  const std::string job_space_;  // empty: none
  const RunFacts facts_;
  const std::int32_t rank_;
  std::uint64_t n_told_ = 0;  // runs that this rank has told of in this job, this one included
  bool has_compared_ = false;
};

}  // namespace stoker

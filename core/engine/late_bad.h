#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "base/result.h"
#include "pipeline/dataset.h"
#include "pipeline/ledger.h"
#include "pipeline/settings.h"

namespace stoker {

/// Whether a run goes on with samples that turned out bad after planning, pack by pack. Threads: one at a time.
class LateBad {
 public:
  /// @param n_counting  Loaders of the run that count each for itself: the fraction is of no less than this one's part
  /// of a window. @param whose  samples they are, for people: "this rank". Settings and dataset outlive this.
  LateBad(const LoaderSettings& settings, const Dataset& dataset, std::int32_t n_counting, std::string whose)
      : settings_(settings), dataset_(dataset), n_counting_(n_counting), whose_(std::move(whose)) {}

  /// Counts a pack. @param n_samples  Of it, those found late left out.
  /// @return What ends the run in the pack's place: the sample's own reason, or TOO_MANY_BAD.
  Status count(std::span<const LedgerEntry> found_late, std::int64_t n_samples);

 private:
  Status check(std::span<const LedgerEntry> found_late) const;

  const LoaderSettings& settings_;
  const Dataset& dataset_;
  const std::int32_t n_counting_;
  const std::string whose_;
  std::int64_t n_samples_ = 0;   // of the packs before
  std::int64_t n_late_bad_ = 0;  // with this one's
};

}  // namespace stoker

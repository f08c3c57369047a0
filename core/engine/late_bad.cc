#include "engine/late_bad.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace stoker {

Status LateBad::count(std::span<const LedgerEntry> found_late, std::int64_t n_samples) {
  n_late_bad_ += static_cast<std::int64_t>(found_late.size());
  Status verdict = check(found_late);
  n_samples_ += n_samples;
  return verdict;
}

Status LateBad::check(std::span<const LedgerEntry> found_late) const {
  if (found_late.empty()) return {};
  const auto where = [this](const LedgerEntry& entry) {
    return dataset_.manifest(entry.entry.source).describe(entry.entry.row) +
           (entry.media.empty() ? "" : ": " + entry.media);
  };
  const bool stops_at_change = settings_.output.changed_media == ChangedMedia::kStop;
  for (const LedgerEntry& entry : found_late) {
    if (settings_.bad_samples.policy != BadSamplePolicy::kStop &&
        !(stops_at_change && entry.status.reason() == Reason::kMediaChanged)) {
      continue;
    }
    Status status = entry.status;
    return std::move(status).with(where(entry));
  }
  const LedgerEntry& first = found_late.front();
  const std::int64_t seen = std::max(n_samples_ + n_late_bad_, settings_.output.window_samples / n_counting_);
  if (static_cast<double>(n_late_bad_) <= settings_.bad_samples.max_fraction * static_cast<double>(seen)) return {};
  return Status(Reason::kTooManyBad,
                fmt::format("{} of {} samples of {} turned out bad, bad_samples.max_fraction is {}; the last is {}: {}",
                            n_late_bad_, seen, whose_, settings_.bad_samples.max_fraction, where(first),
                            first.status.to_string()));
}

}  // namespace stoker

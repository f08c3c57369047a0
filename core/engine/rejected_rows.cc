#include "engine/rejected_rows.h"

#include <unistd.h>

#include <algorithm>

namespace stoker {

RejectedRowCounter::RejectedRowCounter(const std::string& ledger, int n_examples)
    : n_examples_(static_cast<std::size_t>(std::max(n_examples, 0))), ledger_(ledger) {
  if (!ledger.empty()) unlink(ledger.c_str());
}

Status RejectedRowCounter::add(const MeasuredWindow& window, const Dataset& dataset) {
  std::vector<LedgerEntry> rejected;
  for (const MeasuredSample& sample : window.samples) {
    if (sample.bad.ok()) continue;
    rejected.push_back({sample.order_index, sample.entry, sample.bad_media, sample.bad});
    ++rows_.n;
    ++rows_.by_reason[sample.bad.reason()];
    auto& kept = rows_.examples[sample.bad.reason()];
    if (kept.size() >= n_examples_) continue;
    const RowLocation at = dataset.manifest(sample.entry.source).row(sample.entry.row);
    kept.push_back({dataset.name(sample.entry.source), at.line, at.offset, sample.bad_media, sample.bad.message()});
  }
  return ledger_.append(rejected, dataset);
}

}  // namespace stoker

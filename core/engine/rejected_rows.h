#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "pipeline/dataset.h"
#include "pipeline/ledger.h"
#include "pipeline/measured.h"

namespace stoker {

/// A row that a run would leave out.
struct RejectedRow {
  std::string manifest;
  std::uint64_t line = 0;
  std::uint64_t byte_offset = 0;
  std::string media;  ///< empty: the row itself is to blame
  std::string message;
};

/// Rows that a run would leave out, counted by the reason that a ledger would name.
struct RejectedRows {
  std::uint64_t n = 0;
  std::map<Reason, std::uint64_t> by_reason;
  std::map<Reason, std::vector<RejectedRow>> examples;  ///< the first of each, in the order of the manifests
};

/// Collects them in order, and writes each into a ledger. Threads: one at a time.
class RejectedRowCounter {
 public:
  /// @param ledger  JSONL file, made anew; empty: none.
  RejectedRowCounter(const std::string& ledger, int n_examples);

  /// @return INDEX_DIR if the ledger cannot be written.
  Status add(const MeasuredWindow& window, const Dataset& dataset);
  const RejectedRows& so_far() const { return rows_; }

 private:
  const std::size_t n_examples_;
  Ledger ledger_;
  RejectedRows rows_;
};

}  // namespace stoker

#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "pipeline/dataset.h"
#include "plan/order.h"

namespace stoker {

/// A sample that was not used, and why.
struct LedgerEntry {
  std::uint64_t order_index = 0;
  OrderEntry entry;
  std::string media;  ///< empty where the row itself is to blame
  Status status;
};

/// Appends lines to the ledger, one JSON object each: {"pass", "order_index", "manifest", "line", "byte_offset",
/// "media", "code", "message"}; the line is null where rows are not counted. A line is one write, so several ranks may
/// share a file; after a resume a line may stand twice, and readers go by (pass, order_index).
class Ledger {
 public:
  /// @param path  Made at the first line; empty: nothing is written, only counted.
  explicit Ledger(std::string path) : path_(std::move(path)) {}
  ~Ledger();
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  /// @return INDEX_DIR if the file cannot be written. Threads: one.
  Status append(std::span<const LedgerEntry> entries, const Dataset& dataset);

 private:
  std::string path_;
  int fd_ = -1;
};

/// `text` as a JSON string, quotes included; what is not UTF-8 is replaced.
std::string json_quoted(std::string_view text);
/// One line of the ledger, line feed included.
std::string ledger_line(const LedgerEntry& entry, const Dataset& dataset);

}  // namespace stoker

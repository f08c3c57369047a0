#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <map>
#include <string>

#include "base/result.h"
#include "engine/rejected_rows.h"
#include "metric/log_histogram.h"

namespace stoker {

/// Paths and messages may quote bytes that are no UTF-8.
nanobind::object text_or_bytes(const std::string& text);
/// {"n", "total", "least", "most", "p50", "p90", "p99", "buckets": [(begin, end, n)]}
nanobind::dict histogram_dict(const LogHistogram& histogram);
/// {code: n}
nanobind::dict counts_dict(const std::map<Reason, std::uint64_t>& counts);
/// Adds "rejected", "rejected_by_code", "examples": {code: [{"manifest", "line", "byte_offset", "media", "message"}]}.
void add_rejected(nanobind::dict& to, const RejectedRows& rows);

}  // namespace stoker

#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <map>

#include "base/result.h"
#include "pipeline/snapshot.h"

namespace stoker {

/// What stages and queues have counted, by the names that reports know.
nanobind::dict pipeline_dict(const PipelineSnapshot& snapshot);
/// {code: n}
nanobind::dict bad_dict(const std::map<Reason, std::int64_t>& bad);

}  // namespace stoker

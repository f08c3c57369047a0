#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "pipeline/dataset.h"

namespace stoker {

/// Where a sample of a batch comes from.
struct SampleOrigin {
  std::uint64_t pass = 0;
  std::string manifest;
  std::uint64_t line = 0;
  std::uint64_t byte_offset = 0;
  std::vector<std::string> media;
};

/// @param sample_id  As in a batch. @return SETTINGS for an index that the order does not have; what kept its row from
/// being read. Threads: any.
Result<SampleOrigin> origin_of(std::int64_t sample_id, const Dataset& dataset);

}  // namespace stoker

#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "mem/buffer.h"
#include "source/checksum/checksum.h"

namespace stoker {

/// What came of an object before its connection broke: the next try asks for the rest, on condition that the object is
/// still the same.
struct Partial {
  Buffer bytes;                                     ///< room for the whole part that was asked for
  std::uint64_t n_filled = 0;                       ///< of it, from the front
  std::uint64_t total_bytes = 0;                    ///< of the object
  std::string etag;                                 ///< never empty, never a weak one
  std::optional<Checksum> checksum = std::nullopt;  ///< of the whole object, and of `bytes` so far
};

}  // namespace stoker

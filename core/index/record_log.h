#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "base/hash.h"

namespace stoker {

/// A file of records in the order in which they were learned, appended to by one process, block by block:
///   magic (8), rules (16), checksum of these (8); then blocks: length of the payload (8), its checksum (8), payload.
/// A payload is records one after another: key (16), length of the value, value. Integers are little-endian.
///
/// A block is there wholly or not at all: what a killed writer left of its last one is ignored.
struct RecordLog {
  static constexpr std::size_t kMostValueBytes = std::size_t{1} << 16;
  static constexpr std::size_t kMostBlockBytes = std::size_t{1} << 20;
  static constexpr std::size_t kHeadBytes = 8 + 16 + 8;

  /// How reading a log ended.
  enum class End {
    kWhole,
    kTorn,     ///< its last block is not whole, or what follows a sound block is damaged
    kNotOurs,  ///< not a log, another version's, or one of other rules
  };
  using Visit = std::function<void(const Hash128& key, std::string_view value)>;

  /// @param rules  What the records follow from beside their keys: a log of other rules is not read.
  static std::string head(const Hash128& rules);
  /// Appends a record to a payload. `value` has at most kMostValueBytes.
  static void add(std::string& payload, const Hash128& key, std::string_view value);
  /// A payload of at most kMostBlockBytes as a block.
  static std::string block(std::string_view payload);
  /// Foreign bytes: what does not fit is not visited, nothing is allocated. A later record of a key holds.
  static End read(std::string_view bytes, const Hash128& rules, const Visit& visit);
};

}  // namespace stoker

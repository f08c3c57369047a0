#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"

namespace stoker {

/// How often the rows of one entry of a mixture come in an epoch.
struct Share {
  enum class Kind : std::uint8_t {
    kOnce,     ///< every row once
    kRepeat,   ///< `value` millionths of its rows: 2,500,000 is every row twice and half of them once more
    kSamples,  ///< `value` of its rows
    kWeight,   ///< its part of the epoch is `value` among the weights of all entries
  };
  Kind kind = Kind::kOnce;
  std::uint64_t value = 1;  ///< an integer, so that every node computes the same

  bool operator==(const Share&) const = default;
};

inline constexpr std::uint64_t kShareUnit = 1'000'000;  ///< one whole, for kRepeat; weights may use any unit

/// How many samples of each entry an epoch has. Of a mixture by weights an epoch has as many samples as all entries
/// have rows, divided by largest remainder.
/// @param n_rows  (n_entries) rows of each entry
/// @return SETTINGS where weights are mixed with other kinds or a value is 0 or too large; NO_DATA for an entry without
/// a row that is to give some. Pure.
Result<std::vector<std::uint64_t>> samples_per_epoch(std::span<const Share> shares,
                                                     std::span<const std::uint64_t> n_rows);

}  // namespace stoker

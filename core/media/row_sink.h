#pragma once

#include <array>
#include <cstdint>

#include "base/result.h"

namespace stoker {

/// Bytes that every row's memory has behind its last pixel, so that kernels may load whole vectors there. Content is
/// arbitrary.
inline constexpr int kRowSlackBytes = 64;

/// Up to two rows of a picture, planar: rows[i][c] points at `width` uint8 samples of channel c (R, G, B), borrowed for
/// the call.
struct RowPair {
  std::array<std::array<const std::uint8_t*, 3>, 2> rows;
};

/// Where a decoder sends a picture: row by row, top to bottom as stored, as 8-bit RGB planes with alpha and depth
/// already dealt with. Orientation is the sink's business.
class RowSink {
 public:
  virtual ~RowSink() = default;
  /// Rows `first` (always even) and `first + 1`; where the height is odd, the last call repeats its row in both places.
  /// Each row has kRowSlackBytes of readable memory behind it. An error ends the decoding and is returned by the
  /// decoder.
  virtual Status take(int first, const RowPair& pair) = 0;
};

}  // namespace stoker

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "media/row_sink.h"

namespace stoker {

/// Pixels are handled in groups of 16: one row of a patch of 16, four blocks of four outputs.
inline constexpr int kGroupPixels = 16;

/// What the horizontal kernels read. A block of outputs reads its samples from a window of the source: one load, then a
/// byte shuffle per pair of taps. The form goes by how far apart the taps of neighbouring outputs lie.
struct HorizontalView {
  enum class Form : std::uint8_t {
    kWindow,         ///< at most four pairs, all taps of a block within 16 bytes
    kSlidingWindow,  ///< the window moves on, each pair of taps of a block lies within 16 bytes
    kDot,            ///< far apart: per output, a dot product over its contiguous taps
    kWide,           ///< as kSlidingWindow, with a window of 64 bytes for a whole group: for `WideKernels` only
  };
  Form form;
  int n_groups;
  int n_pairs;       ///< pairs of taps per output
  int n_parts;       ///< of a weight, see AxisTaps
  int precision;     ///< kWindow with weights of one part: at most 16
  int window_pairs;  ///< kSlidingWindow (at most 3), kWide: pairs after which the window moves on, by as many
  bool is_shared;    ///< kWindow: two blocks have the same window
  /// kWindow, kSlidingWindow, kWide: (n_groups, n_pairs, 1 + n_parts, 64): byte shuffles (source byte, zero, next
  /// source byte, zero per output), counted from the window; then the parts of the weights as int16 pairs. kDot:
  /// (n_groups * 16, n_parts, n_pairs * 2) int16 weights, padded with zeros to a multiple of 16 taps.
  const std::uint8_t* table;
  /// kWindow, kWide with one window: whether all outputs of a group do with n_pairs - 1, (n_groups).
  const std::uint8_t* is_fewer;
  /// Source offset of each block's first window, (n_groups, 4); kWide: of each group's, (n_groups); kDot: of each
  /// output's taps, (n_groups * 16).
  const std::int32_t* base;
};

/// Two source rows to one row of output pairs: out[c] gets, per output pixel, the results of both rows as two int16 in
/// 0..255.
void horizontal_pair(const HorizontalView& taps, const RowPair& rows, const std::array<std::int16_t*, 3>& out);

/// The same where the axis does not change: the rows are only interleaved. Writes whole groups.
void zip_pair(const RowPair& rows, int n_groups, const std::array<std::int16_t*, 3>& out);

/// Two output rows of one plane from row pairs.
struct VerticalView {
  int n_groups;
  /// Per output row; pointers and weights are there for the larger of them. {0, 0}: the output rows are those of the
  /// pair pairs[0][0] as they are.
  std::array<int, 2> n_pairs;
  int n_parts;  ///< of a weight, see AxisTaps
  int precision;
  std::array<const std::int16_t* const*, 2> pairs;  ///< per output row, pointers to rows of pairs
  std::array<const std::int32_t*, 2> weights;       ///< per output row, (n_pairs, n_parts): two int16 in one word
  const std::uint32_t* group_offset;                ///< (n_groups): where 16 pixels of a row go
};

/// Writes 16 pixels per group at out[row] + group_offset[group].
void vertical_rows(const VerticalView& taps, const std::array<std::uint8_t*, 2>& out);

/// Four output rows whose 16-pixel pieces lie behind one another, 64 bytes per group: rows of a patch of 16. Whole
/// cache lines go past the cache, because who reads them comes later; `finish_streams` makes them visible to other
/// threads.
/// @param upper, lower  Rows 0 and 1, rows 2 and 3; same groups, offsets and precision.
/// @param out  A multiple of 64, like every group offset.
void vertical_quad(const VerticalView& upper, const VerticalView& lower, std::uint8_t* out);
void finish_streams();

/// The same for rows that only have to be copied: 16 bytes per group and row.
void copy_quad(const std::array<const std::uint8_t*, 4>& rows, int n_groups, const std::uint32_t* offsets,
               std::uint8_t* out);

/// Turns blocks of 16 x 16 bytes on their side: column x of the 16 rows becomes 16 bytes at out + offsets[x / 16] +
/// 16 * (x % 16).
/// @param is_line  Whether `out` and every offset are multiples of 64 and who reads them comes later: as vertical_quad.
void transpose_rows(const std::array<const std::uint8_t*, kGroupPixels>& rows, int n_blocks,
                    const std::uint32_t* offsets, bool is_line, std::uint8_t* out);

}  // namespace stoker

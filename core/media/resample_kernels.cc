#include "media/resample_kernels.h"

#include "media/simd_targets.h"
#include "media/taps.h"
#include "media/wide_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "media/resample_kernels.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "media/simd_blocks-inl.h"

HWY_BEFORE_NAMESPACE();
namespace stoker::HWY_NAMESPACE {

constexpr size_t kBlockBytes = 16;  // four outputs: two int16 taps each
constexpr size_t kVectorBlocks = kVectorBytes / kBlockBytes;
constexpr size_t kGroupBlocks = 4;
constexpr size_t kGroupVectors = kGroupBlocks / kVectorBlocks;
constexpr size_t kTableRowBytes = kGroupBlocks * kBlockBytes;  // of a group's shuffles, and of each part of its weights

/// 16 source bytes for each block of a vector.
/// @tparam kIsShared  They are the same ones.
template <bool kIsShared>
HWY_INLINE VU8 load_windows(const uint8_t* row, const int32_t* base) {
  if constexpr (kIsShared) return hn::LoadDup128(U8(), row + base[0]);
  const hn::FixedTag<uint8_t, 16> block;
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  return hn::Combine(U8(), hn::LoadU(block, row + base[1]), hn::LoadU(block, row + base[0]));
#else
  return hn::LoadU(block, row + base[0]);
#endif
}

/// A sum under way, one accumulator for each part of the weights.
template <size_t kParts>
struct Sum {
  VI32 part[kParts];
};

/// Only one half, to be rounded by the last shift.
template <size_t kParts>
HWY_INLINE Sum<kParts> half_of(int precision) {
  Sum<kParts> sum;
  for (size_t i = 0; i < kParts; ++i) sum.part[i] = hn::Zero(I32());
  sum.part[kParts - 1] = hn::Set(I32(), static_cast<int32_t>(uint32_t{1} << (precision - 1)));
  return sum;
}

/// The sum, rounded to whole numbers. Two parts may wrap around on the way, as they do in one 32-bit sum.
template <size_t kParts>
HWY_INLINE VI32 rounded(const Sum<kParts>& sum, int precision) {
  if constexpr (kParts == 1) {
    return hn::ShiftRightSame(sum.part[0], precision);
  } else {
    return hn::ShiftRight<kPillowBits>(hn::Add(hn::ShiftLeft<kPartBits>(sum.part[0]), sum.part[1]));
  }
}

template <size_t kParts>
HWY_INLINE void add_dots(VI16 samples, const VI16 (&weights)[kParts], Sum<kParts>& sum) {
  for (size_t i = 0; i < kParts; ++i) sum.part[i] = dot_pairs(samples, weights[i], sum.part[i]);
}

/// Both rows' results as pairs: row 0 in the even lanes, row 1 in the odd ones, clipped to 0..255. Results fit int16
/// before clipping, because the filter overshoots by less than a factor of two.
/// @param high_row1  Row 1 in the upper half of each lane, anything in the lower.
HWY_INLINE VI16 pairs_of(VI32 row0, VI32 high_row1) {
  const I16 d;
  const VI16 both = hn::OddEven(hn::BitCast(d, high_row1), hn::BitCast(d, row0));
  return hn::Min(hn::Max(both, hn::Zero(d)), hn::Set(d, 255));
}

/// The sum rounded, in the upper half of each lane: one shift where the precision is at most 16.
template <size_t kParts>
HWY_INLINE VI32 rounded_high(const Sum<kParts>& sum, int precision) {
  if constexpr (kParts == 1) {
    return hn::ShiftLeftSame(sum.part[0], 16 - precision);
  } else {
    return hn::ShiftRight<kPillowBits - 16>(hn::Add(hn::ShiftLeft<kPartBits>(sum.part[0]), sum.part[1]));
  }
}

/// One vector of outputs: its shuffles and weights stay in registers over six dot products (three planes, two rows).
template <size_t kPairs, bool kIsShared, size_t kParts>
HWY_INLINE void put_outputs(const uint8_t* table, const int32_t* base, const RowPair& from, const Sum<kParts>& half,
                            int precision, const std::array<int16_t*, 3>& to, size_t at) {
  constexpr size_t kPairBytes = (1 + kParts) * kTableRowBytes;
  VU8 shuffle[kPairs];
  VI16 weights[kPairs][kParts];
  for (size_t t = 0; t < kPairs; ++t) {
    shuffle[t] = hn::Load(U8(), table + t * kPairBytes);
    for (size_t i = 0; i < kParts; ++i) {
      weights[t][i] = hn::BitCast(I16(), hn::Load(U8(), table + t * kPairBytes + (1 + i) * kTableRowBytes));
    }
  }
  VI16 done[3];
  for (size_t c = 0; c < 3; ++c) {
    const VU8 window0 = load_windows<kIsShared>(from.rows[0][c], base);
    const VU8 window1 = load_windows<kIsShared>(from.rows[1][c], base);
    Sum<kParts> sum0 = half;
    Sum<kParts> sum1 = half;
    for (size_t t = 0; t < kPairs; ++t) {
      add_dots<kParts>(hn::BitCast(I16(), hn::TableLookupBytesOr0(window0, shuffle[t])), weights[t], sum0);
      add_dots<kParts>(hn::BitCast(I16(), hn::TableLookupBytesOr0(window1, shuffle[t])), weights[t], sum1);
    }
    done[c] = pairs_of(rounded<kParts>(sum0, precision), rounded_high<kParts>(sum1, precision));
  }
  for (size_t c = 0; c < 3; ++c) hn::StoreU(done[c], I16(), to[c] + at);
}

/// Form kWindow with the number of pairs known here. Locals, because a store through a byte pointer would make the
/// compiler load them again.
template <size_t kPairs, bool kIsShared, size_t kParts>
void horizontal_few(const HorizontalView& view, const RowPair& rows, const std::array<int16_t*, 3>& out) {
  constexpr size_t kGroupBytes = kPairs * (1 + kParts) * kTableRowBytes;
  const HorizontalView taps = view;
  const RowPair from = rows;
  const std::array<int16_t*, 3> to = out;
  const Sum<kParts> half = half_of<kParts>(taps.precision);
  for (size_t group = 0; group < static_cast<size_t>(taps.n_groups); ++group) {
    const bool is_fewer = kPairs > 1 && taps.is_fewer[group] != 0;
    for (size_t v = 0; v < kGroupVectors; ++v) {
      const uint8_t* table = taps.table + group * kGroupBytes + v * kVectorBytes;
      const int32_t* base = taps.base + group * kGroupBlocks + v * kVectorBlocks;
      const size_t at = (group * kGroupBlocks + v * kVectorBlocks) * 8;
      if (is_fewer) {
        put_outputs<kPairs == 1 ? 1 : kPairs - 1, kIsShared, kParts>(table, base, from, half, taps.precision, to, at);
      } else {
        put_outputs<kPairs, kIsShared, kParts>(table, base, from, half, taps.precision, to, at);
      }
    }
  }
}

/// Adds the `kPairs` pairs of taps whose table begins at `table` to the sums of `kRows` rows, from one window each.
template <size_t kPairs, size_t kParts, size_t kRows>
HWY_INLINE void add_window(const uint8_t* table, const uint8_t* const* from, size_t x, const int32_t* base,
                           Sum<kParts> (&sums)[kRows]) {
  constexpr size_t kPairBytes = (1 + kParts) * kTableRowBytes;
  VU8 shuffle[kPairs];
  VI16 weights[kPairs][kParts];
  for (size_t t = 0; t < kPairs; ++t) {
    shuffle[t] = hn::Load(U8(), table + t * kPairBytes);
    for (size_t i = 0; i < kParts; ++i) {
      weights[t][i] = hn::BitCast(I16(), hn::Load(U8(), table + t * kPairBytes + (1 + i) * kTableRowBytes));
    }
  }
  for (size_t row = 0; row < kRows; ++row) {
    const VU8 window = load_windows<false>(from[row] + x, base);
    for (size_t t = 0; t < kPairs; ++t) {
      add_dots<kParts>(hn::BitCast(I16(), hn::TableLookupBytesOr0(window, shuffle[t])), weights[t], sums[row]);
    }
  }
}

/// Form kSlidingWindow. All six rows at once share the table's loads; with weights of two parts, whose sums would not
/// fit the registers, two do.
template <size_t kWindowPairs, size_t kParts>
void horizontal_sliding(const HorizontalView& view, const RowPair& rows, const std::array<int16_t*, 3>& out) {
  constexpr size_t kPairBytes = (1 + kParts) * kTableRowBytes;
  constexpr size_t kRows = kParts == 1 ? 6 : 2;
  const HorizontalView taps = view;
  const std::array<int16_t*, 3> to = out;
  const uint8_t* const from[6] = {rows.rows[0][0], rows.rows[1][0], rows.rows[0][1],
                                  rows.rows[1][1], rows.rows[0][2], rows.rows[1][2]};
  const auto n_pairs = static_cast<size_t>(taps.n_pairs);
  const Sum<kParts> half = half_of<kParts>(taps.precision);
  for (size_t group = 0; group < static_cast<size_t>(taps.n_groups); ++group) {
    for (size_t v = 0; v < kGroupVectors; ++v) {
      const uint8_t* const table = taps.table + group * n_pairs * kPairBytes + v * kVectorBytes;
      const int32_t* const base = taps.base + group * kGroupBlocks + v * kVectorBlocks;
      const size_t at = (group * kGroupBlocks + v * kVectorBlocks) * 8;
      for (size_t first = 0; first < 6; first += kRows) {
        Sum<kParts> sums[kRows];
        for (size_t row = 0; row < kRows; ++row) sums[row] = half;
        size_t t = 0;
        for (; t + kWindowPairs <= n_pairs; t += kWindowPairs) {
          add_window<kWindowPairs, kParts, kRows>(table + t * kPairBytes, from + first, 2 * t, base, sums);
        }
        for (const size_t x = 2 * t; t < n_pairs; ++t) {
          add_window<1, kParts, kRows>(table + t * kPairBytes, from + first, x, base, sums);
        }
        for (size_t row = 0; row < kRows; row += 2) {
          const VI32 high = hn::ShiftLeft<16>(rounded<kParts>(sums[row + 1], taps.precision));
          hn::StoreU(pairs_of(rounded<kParts>(sums[row], taps.precision), high), I16(), to[(first + row) / 2] + at);
        }
      }
    }
  }
}

/// Per output, taps of one row with one part of their weights; `n` is a multiple of 16.
HWY_INLINE int32_t dot(const uint8_t* source, const int16_t* weights, size_t n) {
  const I16 d;
  const hn::Half<U8> d8;
  VI32 sum = hn::Zero(I32());
  for (size_t i = 0; i < n; i += hn::Lanes(d)) {
    sum = dot_pairs(hn::PromoteTo(d, hn::LoadU(d8, source + i)), hn::LoadU(d, weights + i), sum);
  }
  return hn::GetLane(hn::SumOfLanes(I32(), sum));
}

template <size_t kParts>
HWY_INLINE int32_t weighted(const uint8_t* source, const int16_t* weights, size_t n, int precision) {
  auto sum = static_cast<uint32_t>(dot(source, weights, n));
  if constexpr (kParts == 2) sum = (sum << kPartBits) + static_cast<uint32_t>(dot(source, weights + n, n));
  return static_cast<int32_t>(sum + (uint32_t{1} << (precision - 1))) >> precision;
}

template <size_t kParts>
void horizontal_dots(const HorizontalView& taps, const RowPair& rows, const std::array<int16_t*, 3>& out) {
  const auto n_taps = static_cast<size_t>(taps.n_pairs) * 2;
  const auto* weights = reinterpret_cast<const int16_t*>(taps.table);
  for (size_t x = 0; x < static_cast<size_t>(taps.n_groups) * kGroupPixels; ++x) {
    for (size_t c = 0; c < 3; ++c) {
      for (size_t row = 0; row < 2; ++row) {
        const int32_t value =
            weighted<kParts>(rows.rows[row][c] + taps.base[x], weights + x * n_taps * kParts, n_taps, taps.precision);
        out[c][2 * x + row] = static_cast<int16_t>(value < 0 ? 0 : value > 255 ? 255 : value);
      }
    }
  }
}

template <bool kIsShared, size_t kParts>
void horizontal_window(const HorizontalView& taps, const RowPair& rows, const std::array<int16_t*, 3>& out) {
  switch (taps.n_pairs) {
    case 1:
      return horizontal_few<1, kIsShared, kParts>(taps, rows, out);
    case 2:
      return horizontal_few<2, kIsShared, kParts>(taps, rows, out);
    case 3:
      return horizontal_few<3, kIsShared, kParts>(taps, rows, out);
    default:
      return horizontal_few<4, kIsShared, kParts>(taps, rows, out);
  }
}

template <size_t kParts>
void horizontal_parts(const HorizontalView& taps, const RowPair& rows, const std::array<int16_t*, 3>& out) {
  switch (taps.form) {
    case HorizontalView::Form::kWindow:
      return taps.is_shared ? horizontal_window<true, kParts>(taps, rows, out)
                            : horizontal_window<false, kParts>(taps, rows, out);
    case HorizontalView::Form::kSlidingWindow:
      switch (taps.window_pairs) {
        case 1:
          return horizontal_sliding<1, kParts>(taps, rows, out);
        case 2:
          return horizontal_sliding<2, kParts>(taps, rows, out);
        default:
          return horizontal_sliding<3, kParts>(taps, rows, out);
      }
    case HorizontalView::Form::kDot:
      return horizontal_dots<kParts>(taps, rows, out);
    case HorizontalView::Form::kWide:
      break;  // never comes here
  }
}

void HorizontalPair(const HorizontalView& taps, const RowPair& rows, const std::array<int16_t*, 3>& out) {
  if (taps.n_parts == 1) return horizontal_parts<1>(taps, rows, out);
  return horizontal_parts<2>(taps, rows, out);
}

void ZipPair(const RowPair& rows, int n_groups, const std::array<int16_t*, 3>& out) {
  const I16 d;
  const hn::Half<U8> d8;
  for (size_t c = 0; c < 3; ++c) {
    for (size_t x = 0; x < static_cast<size_t>(n_groups) * kGroupPixels; x += hn::Lanes(d8)) {
      const auto row0 = hn::LoadU(d8, rows.rows[0][c] + x);
      const auto row1 = hn::LoadU(d8, rows.rows[1][c] + x);
      hn::StoreU(hn::PromoteTo(d, hn::InterleaveLower(d8, row0, row1)), d, out[c] + 2 * x);
      hn::StoreU(hn::PromoteTo(d, hn::InterleaveUpper(d8, row0, row1)), d, out[c] + 2 * x + hn::Lanes(d));
    }
  }
}

/// 16 results of one output row, not yet narrowed: kGroupVectors vectors.
struct GroupResults {
  VI32 lane[kGroupVectors];
};

/// Both rows of a group, narrowed: 16 bytes of the first, 16 of the second.
struct TwoRows {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  VU8 both;
#else
  VU8 first;
  VU8 second;
#endif
};

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
/// Puts four pixels per 32-bit lane into the order that packing by blocks left: a0 a2 b0 b2 | a1 a3 b1 b3.
HWY_INLINE TwoRows in_order(VU8 rows) {
  const hn::FixedTag<int32_t, 8> d32;
  alignas(32) static constexpr int32_t kOrder[8] = {0, 4, 1, 5, 2, 6, 3, 7};
  return {hn::BitCast(U8(), hn::TableLookupLanes(hn::BitCast(d32, rows), hn::SetTableIndices(d32, kOrder)))};
}
#endif

HWY_INLINE TwoRows narrow(const GroupResults& a, const GroupResults& b) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  return in_order(pack_blocks(pack_blocks(a.lane[0], a.lane[1]), pack_blocks(b.lane[0], b.lane[1])));
#else
  const auto one = [](const GroupResults& s) HWY_ATTR {
    return pack_blocks(pack_blocks(s.lane[0], s.lane[1]), pack_blocks(s.lane[2], s.lane[3]));
  };
  return {one(a), one(b)};
#endif
}

/// Two vectors of pairs, narrowed: in every block the first row's pixels, then the second row's.
HWY_INLINE VU8 rows_apart(const int16_t* pairs) {
  const I16 d;
  alignas(16) static constexpr uint8_t kApart[16] = {0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15};
  const VU8 packed = pack_blocks(hn::Load(d, pairs), hn::Load(d, pairs + hn::Lanes(d)));
  return hn::TableLookupBytes(packed, hn::LoadDup128(U8(), kApart));
}

/// Both rows of a group of pairs, as they are.
HWY_INLINE TwoRows split_group(const int16_t* pairs) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  return in_order(rows_apart(pairs));
#else
  const VU8 left = rows_apart(pairs);
  const VU8 right = rows_apart(pairs + kGroupPixels);
  return {hn::ConcatLowerLower(U8(), right, left), hn::ConcatUpperUpper(U8(), right, left)};
#endif
}

/// Where two narrowed rows go: each to its own place.
class ToRows {
 public:
  ToRows(const std::array<uint8_t*, 2>& out, const uint32_t* offsets)
      : first_(out[0]), second_(out[1]), offsets_(offsets) {}
  HWY_INLINE void put(size_t group, const TwoRows& rows) const {
    const hn::FixedTag<uint8_t, 16> row;
    const uint32_t at = offsets_[group];
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
    hn::StoreU(hn::LowerHalf(row, rows.both), row, first_ + at);
    hn::StoreU(hn::UpperHalf(row, rows.both), row, second_ + at);
#else
    hn::StoreU(rows.first, row, first_ + at);
    hn::StoreU(rows.second, row, second_ + at);
#endif
  }

 private:
  uint8_t* first_;
  uint8_t* second_;
  const uint32_t* offsets_;
};

constexpr size_t kTileGroups = 48;
constexpr size_t kTwoRowBytes = 2 * kGroupPixels;

HWY_INLINE void store_two_rows(const TwoRows& rows, uint8_t* to) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  hn::Store(rows.both, U8(), to);
#else
  hn::Store(rows.first, U8(), to);
  hn::Store(rows.second, U8(), to + kGroupPixels);
#endif
}

/// Into a tile that waits in the cache for the other half of its lines.
class ToTile {
 public:
  ToTile(uint8_t* tile, size_t first_group) : tile_(tile), first_group_(first_group) {}
  HWY_INLINE void put(size_t group, const TwoRows& rows) const {
    store_two_rows(rows, tile_ + (group - first_group_) * kTwoRowBytes);
  }

 private:
  uint8_t* tile_;
  size_t first_group_;
};

/// Whole lines: what waited in the tile, then these rows.
class ToLines {
 public:
  ToLines(const uint8_t* tile, size_t first_group, uint8_t* out, const uint32_t* offsets)
      : tile_(tile), first_group_(first_group), out_(out), offsets_(offsets) {}
  HWY_INLINE void put(size_t group, const TwoRows& rows) const {
    const uint8_t* from = tile_ + (group - first_group_) * kTwoRowBytes;
    uint8_t* to = out_ + offsets_[group];
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
    hn::Stream(hn::Load(U8(), from), U8(), to);
    hn::Stream(rows.both, U8(), to + kTwoRowBytes);
#else
    hn::Stream(hn::Load(U8(), from), U8(), to);
    hn::Stream(hn::Load(U8(), from + kGroupPixels), U8(), to + kGroupPixels);
    hn::Stream(rows.first, U8(), to + kTwoRowBytes);
    hn::Stream(rows.second, U8(), to + kTwoRowBytes + kGroupPixels);
#endif
  }

 private:
  const uint8_t* tile_;
  size_t first_group_;
  uint8_t* out_;
  const uint32_t* offsets_;
};

/// What one output row takes from few pairs.
template <size_t kPairs, size_t kParts>
struct RowTaps {
  const int16_t* from[kPairs];
  VI16 weights[kPairs][kParts];
};

template <size_t kPairs, size_t kParts>
HWY_INLINE RowTaps<kPairs, kParts> row_taps(const VerticalView& view, size_t row) {
  RowTaps<kPairs, kParts> taps;
  for (size_t t = 0; t < kPairs; ++t) {
    taps.from[t] = view.pairs[row][t];
    for (size_t i = 0; i < kParts; ++i) {
      taps.weights[t][i] = hn::BitCast(I16(), hn::Set(I32(), view.weights[row][t * kParts + i]));
    }
  }
  return taps;
}

template <size_t kPairs, size_t kParts>
HWY_INLINE GroupResults group_results(const RowTaps<kPairs, kParts>& taps, size_t group, const Sum<kParts>& half,
                                      int precision) {
  GroupResults results;
  for (size_t v = 0; v < kGroupVectors; ++v) {
    Sum<kParts> sum = half;
    for (size_t t = 0; t < kPairs; ++t) {
      add_dots<kParts>(hn::Load(I16(), taps.from[t] + group * kGroupPixels * 2 + v * hn::Lanes(I16())), taps.weights[t],
                       sum);
    }
    results.lane[v] = rounded<kParts>(sum, precision);
  }
  return results;
}

/// Few pairs, their numbers known here; weights and pointers in locals for the reason given at horizontal_few.
template <size_t kPairs0, size_t kPairs1, size_t kParts, class To>
void vertical_few(const VerticalView& view, size_t begin, size_t end, const To sink) {
  const To to = sink;
  const int precision = view.precision;
  const RowTaps<kPairs0, kParts> taps0 = row_taps<kPairs0, kParts>(view, 0);
  const RowTaps<kPairs1, kParts> taps1 = row_taps<kPairs1, kParts>(view, 1);
  const Sum<kParts> half = half_of<kParts>(precision);
  for (size_t group = begin; group < end; ++group) {
    to.put(group, narrow(group_results(taps0, group, half, precision), group_results(taps1, group, half, precision)));
  }
}

template <size_t kParts, class To>
void vertical_many(const VerticalView& taps, size_t begin, size_t end, const To to) {
  const Sum<kParts> half = half_of<kParts>(taps.precision);
  for (size_t group = begin; group < end; ++group) {
    GroupResults results[2];
    for (size_t row = 0; row < 2; ++row) {
      const auto n_pairs = static_cast<size_t>(taps.n_pairs[row]);
      Sum<kParts> sums[kGroupVectors];
      for (size_t v = 0; v < kGroupVectors; ++v) sums[v] = half;
      for (size_t t = 0; t < n_pairs; ++t) {
        VI16 weights[kParts];
        for (size_t i = 0; i < kParts; ++i) {
          weights[i] = hn::BitCast(I16(), hn::Set(I32(), taps.weights[row][t * kParts + i]));
        }
        const int16_t* from = taps.pairs[row][t] + group * kGroupPixels * 2;
        for (size_t v = 0; v < kGroupVectors; ++v) {
          add_dots<kParts>(hn::Load(I16(), from + v * hn::Lanes(I16())), weights, sums[v]);
        }
      }
      for (size_t v = 0; v < kGroupVectors; ++v) results[row].lane[v] = rounded<kParts>(sums[v], taps.precision);
    }
    to.put(group, narrow(results[0], results[1]));
  }
}

template <class To>
void split_rows(const VerticalView& view, size_t begin, size_t end, const To sink) {
  const To to = sink;
  const int16_t* const pairs = view.pairs[0][0];
  for (size_t group = begin; group < end; ++group) to.put(group, split_group(pairs + group * kGroupPixels * 2));
}

/// Neighbouring rows often take two and three pairs, four taps beginning at an even or at an odd row.
template <size_t kParts, class To>
void vertical_parts(const VerticalView& taps, size_t begin, size_t end, const To to) {
  const auto [first, second] = taps.n_pairs;
  switch (first > second ? first : second) {
    case 1:
      return vertical_few<1, 1, kParts>(taps, begin, end, to);
    case 2:
      return vertical_few<2, 2, kParts>(taps, begin, end, to);
    case 3:
      if (first < 3) return vertical_few<2, 3, kParts>(taps, begin, end, to);
      if (second < 3) return vertical_few<3, 2, kParts>(taps, begin, end, to);
      return vertical_few<3, 3, kParts>(taps, begin, end, to);
    default:
      return vertical_many<kParts>(taps, begin, end, to);
  }
}

template <class To>
void vertical_two(const VerticalView& taps, size_t begin, size_t end, const To to) {
  if (taps.n_pairs[0] == 0) return split_rows(taps, begin, end, to);
  if (taps.n_parts == 1) return vertical_parts<1>(taps, begin, end, to);
  return vertical_parts<2>(taps, begin, end, to);
}

void VerticalRows(const VerticalView& taps, const std::array<uint8_t*, 2>& out) {
  vertical_two(taps, 0, static_cast<size_t>(taps.n_groups), ToRows(out, taps.group_offset));
}

void VerticalQuad(const VerticalView& upper, const VerticalView& lower, uint8_t* out) {
  HWY_ALIGN uint8_t tile[kTileGroups * kTwoRowBytes];
  const auto n_groups = static_cast<size_t>(upper.n_groups);
  for (size_t begin = 0; begin < n_groups; begin += kTileGroups) {
    const size_t end = begin + kTileGroups < n_groups ? begin + kTileGroups : n_groups;
    vertical_two(upper, begin, end, ToTile(tile, begin));
    vertical_two(lower, begin, end, ToLines(tile, begin, out, upper.group_offset));
  }
}

void CopyQuad(const std::array<const uint8_t*, 4>& rows, int n_groups, const uint32_t* offsets, uint8_t* out) {
  const hn::FixedTag<uint8_t, 16> d;
  for (size_t group = 0; group < static_cast<size_t>(n_groups); ++group) {
    uint8_t* to = out + offsets[group];
    for (size_t i = 0; i < 4; ++i) {
      hn::Stream(hn::LoadU(d, rows[i] + group * kGroupPixels), d, to + i * kGroupPixels);
    }
  }
}

/// Rotates the eight bits of a byte's address (row, column) by one; four times is a transposition.
HWY_INLINE void rotate_block(hn::Vec<hn::FixedTag<uint8_t, 16>> (&block)[kGroupPixels]) {
  const hn::FixedTag<uint8_t, 16> d;
  hn::Vec<hn::FixedTag<uint8_t, 16>> from[kGroupPixels];
  for (size_t i = 0; i < kGroupPixels; ++i) from[i] = block[i];
  for (size_t i = 0; i < kGroupPixels / 2; ++i) {
    block[2 * i] = hn::InterleaveLower(d, from[i], from[i + kGroupPixels / 2]);
    block[2 * i + 1] = hn::InterleaveUpper(d, from[i], from[i + kGroupPixels / 2]);
  }
}

void TransposeRows(const std::array<const uint8_t*, kGroupPixels>& rows, int n_blocks, const uint32_t* offsets,
                   bool is_line, uint8_t* out) {
  const hn::FixedTag<uint8_t, 16> d;
  for (size_t b = 0; b < static_cast<size_t>(n_blocks); ++b) {
    hn::Vec<hn::FixedTag<uint8_t, 16>> block[kGroupPixels];
    for (size_t i = 0; i < kGroupPixels; ++i) block[i] = hn::LoadU(d, rows[i] + b * kGroupPixels);
    for (int i = 0; i < 4; ++i) rotate_block(block);
    uint8_t* to = out + offsets[b];
    if (is_line) {
      for (size_t i = 0; i < kGroupPixels; ++i) hn::Stream(block[i], d, to + i * kGroupPixels);
    } else {
      for (size_t i = 0; i < kGroupPixels; ++i) hn::StoreU(block[i], d, to + i * kGroupPixels);
    }
  }
}

}  // namespace stoker::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <hwy/cache_control.h>

namespace stoker {

HWY_EXPORT(HorizontalPair);
HWY_EXPORT(ZipPair);
HWY_EXPORT(VerticalRows);
HWY_EXPORT(VerticalQuad);
HWY_EXPORT(CopyQuad);
HWY_EXPORT(TransposeRows);

void horizontal_pair(const HorizontalView& taps, const RowPair& rows, const std::array<std::int16_t*, 3>& out) {
  if (taps.form == HorizontalView::Form::kWide) return wide_kernels()->horizontal_pair(taps, rows, out);
  HWY_DYNAMIC_DISPATCH(HorizontalPair)(taps, rows, out);
}
void zip_pair(const RowPair& rows, int n_groups, const std::array<std::int16_t*, 3>& out) {
  if (const WideKernels* wide = wide_kernels()) return wide->zip_pair(rows, n_groups, out);
  HWY_DYNAMIC_DISPATCH(ZipPair)(rows, n_groups, out);
}
void vertical_rows(const VerticalView& taps, const std::array<std::uint8_t*, 2>& out) {
  if (const WideKernels* wide = wide_kernels()) return wide->vertical_rows(taps, out);
  HWY_DYNAMIC_DISPATCH(VerticalRows)(taps, out);
}
void vertical_quad(const VerticalView& upper, const VerticalView& lower, std::uint8_t* out) {
  if (const WideKernels* wide = wide_kernels()) return wide->vertical_quad(upper, lower, out);
  HWY_DYNAMIC_DISPATCH(VerticalQuad)(upper, lower, out);
}
void copy_quad(const std::array<const std::uint8_t*, 4>& rows, int n_groups, const std::uint32_t* offsets,
               std::uint8_t* out) {
  if (const WideKernels* wide = wide_kernels()) return wide->copy_quad(rows, n_groups, offsets, out);
  HWY_DYNAMIC_DISPATCH(CopyQuad)(rows, n_groups, offsets, out);
}
void transpose_rows(const std::array<const std::uint8_t*, kGroupPixels>& rows, int n_blocks,
                    const std::uint32_t* offsets, bool is_line, std::uint8_t* out) {
  HWY_DYNAMIC_DISPATCH(TransposeRows)(rows, n_blocks, offsets, is_line, out);
}
void finish_streams() { hwy::FlushStream(); }

}  // namespace stoker
#endif  // HWY_ONCE

#include "media/wide_kernels.h"

#include "media/simd_targets.h"
#include "media/taps.h"

// Only here: what this target means is asked of Highway, but its own flags for it lack VNNI.
#define HWY_WANT_AVX3_DL
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "media/wide_kernels.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace stoker::HWY_NAMESPACE {

bool IsWide() { return HWY_ARCH_X86_64 && HWY_TARGET <= HWY_AVX3_DL; }

}  // namespace stoker::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#if HWY_ARCH_X86_64
#include <immintrin.h>

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,bmi2")
namespace stoker {
namespace {

constexpr std::size_t kVectorBytes = 64;
constexpr std::size_t kPairInts = 2 * kGroupPixels;  // int16 of a group in a row of pairs
constexpr __mmask64 kEvenBytes = 0x5555555555555555;
constexpr __mmask32 kOddWords = 0xAAAAAAAA;

HWY_INLINE __m512i load(const void* from) { return _mm512_loadu_si512(from); }
HWY_INLINE void store(__m512i value, void* to) { _mm512_storeu_si512(to, value); }
HWY_INLINE __m512i bytes_as_words(const std::uint8_t* from) {
  return _mm512_maskz_cvtepu8_epi16(~__mmask32{0}, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}

/// A sum under way, one accumulator for each part of the weights.
template <std::size_t kParts>
struct Sum {
  __m512i part[kParts];
};

/// Only one half, to be rounded by the last shift.
template <std::size_t kParts>
HWY_INLINE Sum<kParts> half_of(int precision) {
  Sum<kParts> sum;
  for (std::size_t i = 0; i < kParts; ++i) sum.part[i] = _mm512_setzero_si512();
  sum.part[kParts - 1] = _mm512_set1_epi32(static_cast<int>(1U << (precision - 1)));
  return sum;
}

template <std::size_t kParts>
HWY_INLINE void add_dots(__m512i samples, const __m512i (&weights)[kParts], Sum<kParts>& sum) {
  for (std::size_t i = 0; i < kParts; ++i) sum.part[i] = _mm512_dpwssd_epi32(sum.part[i], samples, weights[i]);
}

/// Both parts in one. They may wrap around on the way, as they do in one 32-bit sum.
template <std::size_t kParts>
HWY_INLINE __m512i joined(const Sum<kParts>& sum) {
  if constexpr (kParts == 1) {
    return sum.part[0];
  } else {
    return _mm512_add_epi32(_mm512_maskz_slli_epi32(~__mmask16{0}, sum.part[0], kPartBits), sum.part[1]);
  }
}

/// Six rows at once (three planes of two rows), so that a group's shuffles and weights are loaded once.
struct SixRows {
  const std::uint8_t* from[6];
  std::int16_t* to[3];
};

/// Adds the pairs of taps whose table begins at `table` to the sums, from the windows at `x`.
template <std::size_t kParts>
HWY_INLINE void add_window(const std::uint8_t* table, std::size_t n_pairs, const SixRows& rows, std::size_t x,
                           Sum<kParts> (&sums)[6]) {
  __m512i window[6];
  for (std::size_t i = 0; i < 6; ++i) window[i] = load(rows.from[i] + x);
  for (std::size_t t = 0; t < n_pairs; ++t, table += (1 + kParts) * kVectorBytes) {
    const __m512i shuffle = load(table);
    __m512i weights[kParts];
    for (std::size_t i = 0; i < kParts; ++i) weights[i] = load(table + (1 + i) * kVectorBytes);
    for (std::size_t i = 0; i < 6; ++i) {
      add_dots<kParts>(_mm512_maskz_permutexvar_epi8(kEvenBytes, shuffle, window[i]), weights, sums[i]);
    }
  }
}

template <std::size_t kParts>
HWY_INLINE void put_group(const Sum<kParts> (&sums)[6], __m512i shift, const SixRows& rows, std::size_t group) {
  for (std::size_t c = 0; c < 3; ++c) {
    const __m512i row0 = _mm512_srav_epi32(joined<kParts>(sums[2 * c]), shift);
    const __m512i row1 = _mm512_slli_epi32(_mm512_srav_epi32(joined<kParts>(sums[2 * c + 1]), shift), 16);
    const __m512i both = _mm512_mask_mov_epi16(row0, kOddWords, row1);
    const __m512i clipped = _mm512_min_epi16(_mm512_max_epi16(both, _mm512_setzero_si512()), _mm512_set1_epi16(255));
    store(clipped, rows.to[c] + group * kPairInts);
  }
}

/// @tparam kPairs  Pairs of taps, all in one window; 0: any number, any number of windows.
template <std::size_t kPairs, std::size_t kParts>
void horizontal_groups(const HorizontalView& view, const RowPair& rows, const std::array<std::int16_t*, 3>& out) {
  constexpr std::size_t kPairBytes = (1 + kParts) * kVectorBytes;
  // Locals, because a store through a byte pointer would make the compiler load them again.
  const HorizontalView taps = view;
  const SixRows six = {
      {rows.rows[0][0], rows.rows[1][0], rows.rows[0][1], rows.rows[1][1], rows.rows[0][2], rows.rows[1][2]},
      {out[0], out[1], out[2]}};
  const auto n_pairs = static_cast<std::size_t>(taps.n_pairs);
  const auto window_pairs = static_cast<std::size_t>(taps.window_pairs);
  const Sum<kParts> half = half_of<kParts>(taps.precision);
  const __m512i shift = _mm512_set1_epi32(taps.precision);
  for (std::size_t group = 0; group < static_cast<std::size_t>(taps.n_groups); ++group) {
    const auto x = static_cast<std::size_t>(taps.base[group]);
    Sum<kParts> sums[6];
    for (std::size_t i = 0; i < 6; ++i) sums[i] = half;
    if constexpr (kPairs > 0) {
      const std::uint8_t* table = taps.table + group * kPairs * kPairBytes;
      if (kPairs > 1 && taps.is_fewer[group] != 0) {
        add_window<kParts>(table, kPairs - 1, six, x, sums);
      } else {
        add_window<kParts>(table, kPairs, six, x, sums);
      }
    } else {
      const std::uint8_t* table = taps.table + group * n_pairs * kPairBytes;
      for (std::size_t t = 0; t < n_pairs; t += window_pairs) {
        const std::size_t n = n_pairs - t < window_pairs ? n_pairs - t : window_pairs;
        add_window<kParts>(table + t * kPairBytes, n, six, x + 2 * t, sums);
      }
    }
    put_group<kParts>(sums, shift, six, group);
  }
}

template <std::size_t kParts>
void horizontal_parts(const HorizontalView& taps, const RowPair& rows, const std::array<std::int16_t*, 3>& out) {
  if (taps.n_pairs > taps.window_pairs) return horizontal_groups<0, kParts>(taps, rows, out);
  switch (taps.n_pairs) {
    case 1:
      return horizontal_groups<1, kParts>(taps, rows, out);
    case 2:
      return horizontal_groups<2, kParts>(taps, rows, out);
    case 3:
      return horizontal_groups<3, kParts>(taps, rows, out);
    default:
      return horizontal_groups<0, kParts>(taps, rows, out);
  }
}

/// Two rows' results of a group as int16, clipped by saturation later: in every 128-bit block four of the first row,
/// four of the second.
HWY_INLINE __m512i two_rows(__m512i row0, __m512i row1) { return _mm512_packs_epi32(row0, row1); }

/// Where two rows go: a tile in the first cache level, to wait for the other two.
class ToTile {
 public:
  ToTile(__m512i* tile, std::size_t first_group) : tile_(tile - first_group) {}
  HWY_INLINE void put(std::size_t group, __m512i rows) const { _mm512_store_si512(tile_ + group, rows); }

 private:
  __m512i* tile_;
};

/// What waited in the tile, then these rows: one line.
class ToLines {
 public:
  ToLines(const __m512i* tile, std::size_t first_group, std::uint8_t* out, const std::uint32_t* offsets)
      : tile_(tile - first_group), out_(out), offsets_(offsets) {}
  HWY_INLINE void put(std::size_t group, __m512i rows) const {
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i four = _mm512_packus_epi16(_mm512_load_si512(tile_ + group), rows);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(out_ + offsets_[group]),
                        _mm512_maskz_permutexvar_epi32(~__mmask16{0}, order, four));
  }

 private:
  const __m512i* tile_;
  std::uint8_t* out_;
  const std::uint32_t* offsets_;
};

/// Each row to its own place.
class ToRows {
 public:
  ToRows(const std::array<std::uint8_t*, 2>& out, const std::uint32_t* offsets)
      : first_(out[0]), second_(out[1]), offsets_(offsets) {}
  HWY_INLINE void put(std::size_t group, __m512i rows) const {
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 0, 4, 8, 12, 1, 5, 9, 13);
    const __m512i both = _mm512_maskz_permutexvar_epi32(~__mmask16{0}, order, _mm512_packus_epi16(rows, rows));
    const std::uint32_t at = offsets_[group];
    _mm_storeu_si128(reinterpret_cast<__m128i*>(first_ + at), _mm512_castsi512_si128(both));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(second_ + at), _mm512_maskz_extracti32x4_epi32(0xF, both, 1));
  }

 private:
  std::uint8_t* first_;
  std::uint8_t* second_;
  const std::uint32_t* offsets_;
};

/// What one output row takes from few pairs.
template <std::size_t kPairs, std::size_t kParts>
struct RowTaps {
  const std::int16_t* from[kPairs];
  __m512i weights[kPairs][kParts];
};

template <std::size_t kPairs, std::size_t kParts>
HWY_INLINE RowTaps<kPairs, kParts> row_taps(const VerticalView& view, std::size_t row) {
  RowTaps<kPairs, kParts> taps;
  for (std::size_t t = 0; t < kPairs; ++t) {
    taps.from[t] = view.pairs[row][t];
    for (std::size_t i = 0; i < kParts; ++i) taps.weights[t][i] = _mm512_set1_epi32(view.weights[row][t * kParts + i]);
  }
  return taps;
}

template <std::size_t kPairs, std::size_t kParts>
HWY_INLINE __m512i group_results(const RowTaps<kPairs, kParts>& taps, std::size_t group, const Sum<kParts>& half,
                                 __m512i shift) {
  Sum<kParts> sum = half;
  for (std::size_t t = 0; t < kPairs; ++t) {
    add_dots<kParts>(_mm512_load_si512(taps.from[t] + group * kPairInts), taps.weights[t], sum);
  }
  return _mm512_srav_epi32(joined<kParts>(sum), shift);
}

template <std::size_t kPairs0, std::size_t kPairs1, std::size_t kParts, class To>
void vertical_few(const VerticalView& view, std::size_t begin, std::size_t end, const To sink) {
  const To to = sink;
  const RowTaps<kPairs0, kParts> taps0 = row_taps<kPairs0, kParts>(view, 0);
  const RowTaps<kPairs1, kParts> taps1 = row_taps<kPairs1, kParts>(view, 1);
  const Sum<kParts> half = half_of<kParts>(view.precision);
  const __m512i shift = _mm512_set1_epi32(view.precision);
  for (std::size_t group = begin; group < end; ++group) {
    to.put(group, two_rows(group_results(taps0, group, half, shift), group_results(taps1, group, half, shift)));
  }
}

/// Four groups at a time, so that weights are spread over a vector once for all of them.
template <std::size_t kParts, class To>
void vertical_many(const VerticalView& taps, std::size_t begin, std::size_t end, const To to) {
  constexpr std::size_t kGroups = 4;
  const Sum<kParts> half = half_of<kParts>(taps.precision);
  const __m512i shift = _mm512_set1_epi32(taps.precision);
  for (std::size_t group = begin; group < end; group += kGroups) {
    const std::size_t n = end - group < kGroups ? end - group : kGroups;
    __m512i results[2][kGroups];
    for (std::size_t row = 0; row < 2; ++row) {
      const auto n_pairs = static_cast<std::size_t>(taps.n_pairs[row]);
      Sum<kParts> sums[kGroups] = {half, half, half, half};
      for (std::size_t t = 0; t < n_pairs; ++t) {
        __m512i weights[kParts];
        for (std::size_t i = 0; i < kParts; ++i) weights[i] = _mm512_set1_epi32(taps.weights[row][t * kParts + i]);
        const std::int16_t* from = taps.pairs[row][t] + group * kPairInts;
        if (n == kGroups) {
          for (std::size_t g = 0; g < kGroups; ++g)
            add_dots<kParts>(_mm512_load_si512(from + g * kPairInts), weights, sums[g]);
        } else {
          for (std::size_t g = 0; g < n; ++g)
            add_dots<kParts>(_mm512_load_si512(from + g * kPairInts), weights, sums[g]);
        }
      }
      for (std::size_t g = 0; g < kGroups; ++g) results[row][g] = _mm512_srav_epi32(joined<kParts>(sums[g]), shift);
    }
    for (std::size_t g = 0; g < n; ++g) to.put(group + g, two_rows(results[0][g], results[1][g]));
  }
}

/// Neighbouring rows often take two and three pairs, four taps beginning at an even or at an odd row.
template <std::size_t kParts, class To>
void vertical_parts(const VerticalView& taps, std::size_t begin, std::size_t end, const To to) {
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

/// Both rows of a pair, as they are.
template <class To>
void split_rows(const VerticalView& view, std::size_t begin, std::size_t end, const To sink) {
  const To to = sink;
  const std::int16_t* const pairs = view.pairs[0][0];
  const __m512i apart = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
  for (std::size_t group = begin; group < end; ++group) {
    to.put(group, _mm512_shuffle_epi8(_mm512_load_si512(pairs + group * kPairInts), apart));
  }
}

template <class To>
void vertical_two(const VerticalView& taps, std::size_t begin, std::size_t end, const To to) {
  if (taps.n_pairs[0] == 0) return split_rows(taps, begin, end, to);
  if (taps.n_parts == 1) return vertical_parts<1>(taps, begin, end, to);
  return vertical_parts<2>(taps, begin, end, to);
}

/// Samples of even and odd columns, each 16 bits wide: chroma comes out of the triangle filter in this form.
struct EvenOdd {
  __m512i even;
  __m512i odd;
};

HWY_INLINE EvenOdd load_even_odd(const std::uint8_t* row) {
  const __m512i both = load(row);
  return {_mm512_and_si512(both, _mm512_set1_epi16(0xFF)), _mm512_srli_epi16(both, 8)};
}

/// Both saturated to bytes and interleaved.
HWY_INLINE void store_even_odd(__m512i even, __m512i odd, std::uint8_t* out) {
  const __m512i zip = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15));
  store(_mm512_shuffle_epi8(_mm512_packus_epi16(even, odd), zip), out);
}

struct Rgb {
  __m512i r;
  __m512i g;
  __m512i b;
};

/// As in colour_kernels.cc, with the same constants.
HWY_INLINE Rgb convert(__m512i y, __m512i cb, __m512i cr) {
  const __m512i r = _mm512_add_epi16(_mm512_add_epi16(y, cr), _mm512_mulhrs_epi16(cr, _mm512_set1_epi16(13173)));
  const __m512i b = _mm512_add_epi16(_mm512_add_epi16(y, _mm512_add_epi16(cb, cb)),
                                     _mm512_mulhrs_epi16(cb, _mm512_set1_epi16(-7471)));
  const __m512i factors =
      _mm512_set1_epi32(static_cast<int>((18734U << 16) | (static_cast<unsigned>(-22554) & 0xFFFFU)));
  const __m512i half = _mm512_set1_epi32(1 << 15);
  const __m512i low = _mm512_dpwssd_epi32(half, _mm512_unpacklo_epi16(cb, cr), factors);
  const __m512i high = _mm512_dpwssd_epi32(half, _mm512_unpackhi_epi16(cb, cr), factors);
  const __m512i part = _mm512_packs_epi32(_mm512_srai_epi32(low, 16), _mm512_srai_epi32(high, 16));
  return {r, _mm512_sub_epi16(_mm512_add_epi16(y, part), cr), b};
}

HWY_INLINE void convert_and_store(const std::uint8_t* y_row, EvenOdd cb, EvenOdd cr, std::size_t at, std::uint8_t* r,
                                  std::uint8_t* g, std::uint8_t* b) {
  const EvenOdd y = load_even_odd(y_row + at);
  const Rgb even = convert(y.even, cb.even, cr.even);
  const Rgb odd = convert(y.odd, cb.odd, cr.odd);
  store_even_odd(even.r, odd.r, r + at);
  store_even_odd(even.g, odd.g, g + at);
  store_even_odd(even.b, odd.b, b + at);
}

/// What the horizontal triangle filter starts from: 3 * near + far, or the row itself, with copies of both ends around.
template <bool kHalfHeight>
HWY_INLINE void column_sums(const std::uint8_t* near, const std::uint8_t* far, std::size_t n, std::int16_t* sums) {
  for (std::size_t i = 0; i < n; i += kVectorBytes / 2) {
    __m512i sum = bytes_as_words(near + i);
    if constexpr (kHalfHeight) {
      sum = _mm512_add_epi16(_mm512_add_epi16(sum, _mm512_add_epi16(sum, sum)), bytes_as_words(far + i));
    }
    store(sum, sums + i);
  }
  sums[-1] = sums[0];
  sums[n] = sums[n - 1];
}

template <bool kHalfHeight>
HWY_INLINE EvenOdd triangle(const std::int16_t* sums) {
  constexpr int kShift = kHalfHeight ? 4 : 2;
  constexpr short kEven = (kHalfHeight ? 8 : 1) - (128 << kShift);  // rounding, and chroma's offset
  constexpr short kOdd = (kHalfHeight ? 7 : 2) - (128 << kShift);
  const __m512i here = load(sums);
  const __m512i thrice = _mm512_add_epi16(here, _mm512_add_epi16(here, here));
  const __m512i before = _mm512_add_epi16(load(sums - 1), _mm512_set1_epi16(kEven));
  const __m512i after = _mm512_add_epi16(load(sums + 1), _mm512_set1_epi16(kOdd));
  return {_mm512_srai_epi16(_mm512_add_epi16(thrice, before), kShift),
          _mm512_srai_epi16(_mm512_add_epi16(thrice, after), kShift)};
}

template <bool kHalfHeight>
void half_width(const YccRow& row, std::size_t chroma_width, std::int16_t* scratch, std::uint8_t* r, std::uint8_t* g,
                std::uint8_t* b) {
  std::int16_t* cb_sums = scratch + kVectorBytes / 2;
  std::int16_t* cr_sums = cb_sums + (chroma_width + 95) / 32 * 32;
  column_sums<kHalfHeight>(row.near[0], row.far[0], chroma_width, cb_sums);
  column_sums<kHalfHeight>(row.near[1], row.far[1], chroma_width, cr_sums);
  for (std::size_t i = 0; i < chroma_width; i += kVectorBytes / 2) {
    convert_and_store(row.y, triangle<kHalfHeight>(cb_sums + i), triangle<kHalfHeight>(cr_sums + i), 2 * i, r, g, b);
  }
}

void full_width(const YccRow& row, std::size_t width, std::uint8_t* r, std::uint8_t* g, std::uint8_t* b) {
  const __m512i offset = _mm512_set1_epi16(128);
  for (std::size_t x = 0; x < width; x += kVectorBytes) {
    EvenOdd cb = load_even_odd(row.near[0] + x);
    EvenOdd cr = load_even_odd(row.near[1] + x);
    cb = {_mm512_sub_epi16(cb.even, offset), _mm512_sub_epi16(cb.odd, offset)};
    cr = {_mm512_sub_epi16(cr.even, offset), _mm512_sub_epi16(cr.odd, offset)};
    convert_and_store(row.y, cb, cr, x, r, g, b);
  }
}

void wide_horizontal_pair(const HorizontalView& taps, const RowPair& rows, const std::array<std::int16_t*, 3>& out) {
  if (taps.n_parts == 1) return horizontal_parts<1>(taps, rows, out);
  return horizontal_parts<2>(taps, rows, out);
}

void wide_zip_pair(const RowPair& rows, int n_groups, const std::array<std::int16_t*, 3>& out) {
  for (std::size_t c = 0; c < 3; ++c) {
    const std::uint8_t* const row0 = rows.rows[0][c];
    const std::uint8_t* const row1 = rows.rows[1][c];
    std::int16_t* const to = out[c];
    for (std::size_t x = 0; x < static_cast<std::size_t>(n_groups) * kGroupPixels; x += kGroupPixels) {
      const __m512i low = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row0 + x)));
      const __m512i high = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row1 + x)));
      store(_mm512_or_si512(low, _mm512_slli_epi32(high, 16)), to + 2 * x);
    }
  }
}

void wide_vertical_rows(const VerticalView& taps, const std::array<std::uint8_t*, 2>& out) {
  vertical_two(taps, 0, static_cast<std::size_t>(taps.n_groups), ToRows(out, taps.group_offset));
}

void wide_vertical_quad(const VerticalView& upper, const VerticalView& lower, std::uint8_t* out) {
  constexpr std::size_t kTileGroups = 48;
  __m512i tile[kTileGroups];
  const auto n_groups = static_cast<std::size_t>(upper.n_groups);
  for (std::size_t begin = 0; begin < n_groups; begin += kTileGroups) {
    const std::size_t end = begin + kTileGroups < n_groups ? begin + kTileGroups : n_groups;
    vertical_two(upper, begin, end, ToTile(tile, begin));
    vertical_two(lower, begin, end, ToLines(tile, begin, out, upper.group_offset));
  }
}

void wide_copy_quad(const std::array<const std::uint8_t*, 4>& rows, int n_groups, const std::uint32_t* offsets,
                    std::uint8_t* out) {
  const std::uint8_t* const from[4] = {rows[0], rows[1], rows[2], rows[3]};
  for (std::size_t group = 0; group < static_cast<std::size_t>(n_groups); ++group) {
    __m128i row[4];
    for (std::size_t i = 0; i < 4; ++i) {
      row[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from[i] + group * kGroupPixels));
    }
    const __m256i upper = _mm256_inserti128_si256(_mm256_castsi128_si256(row[0]), row[1], 1);
    const __m256i lower = _mm256_inserti128_si256(_mm256_castsi128_si256(row[2]), row[3], 1);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(out + offsets[group]),
                        _mm512_inserti64x4(_mm512_castsi256_si512(upper), lower, 1));
  }
}

void wide_ycc_to_rgb(ChromaLayout layout, const YccRow& row, int chroma_width, std::int16_t* scratch,
                     const std::array<std::uint8_t*, 3>& rgb) {
  const auto n = static_cast<std::size_t>(chroma_width);
  switch (layout) {
    case ChromaLayout::kFull:
      return full_width(row, n, rgb[0], rgb[1], rgb[2]);
    case ChromaLayout::kHalfWidth:
      return half_width<false>(row, n, scratch, rgb[0], rgb[1], rgb[2]);
    case ChromaLayout::kHalfBoth:
      return half_width<true>(row, n, scratch, rgb[0], rgb[1], rgb[2]);
  }
}

constexpr WideKernels kWideKernels = {wide_horizontal_pair, wide_zip_pair,  wide_vertical_rows,
                                      wide_vertical_quad,   wide_copy_quad, wide_ycc_to_rgb};

}  // namespace
}  // namespace stoker
HWY_POP_ATTRIBUTES
#endif  // HWY_ARCH_X86_64

namespace stoker {

HWY_EXPORT(IsWide);

const WideKernels* wide_kernels() {
#if HWY_ARCH_X86_64
  if (HWY_DYNAMIC_DISPATCH(IsWide)()) return &kWideKernels;
#endif
  return nullptr;
}

}  // namespace stoker
#endif  // HWY_ONCE

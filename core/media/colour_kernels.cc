#include "media/colour_kernels.h"

#include "media/simd_targets.h"
#include "media/wide_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "media/colour_kernels.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "media/simd_blocks-inl.h"

HWY_BEFORE_NAMESPACE();
namespace stoker::HWY_NAMESPACE {

/// Samples of even and odd columns, each 16 bits wide: chroma comes out of the triangle filter in this form.
struct EvenOdd {
  VI16 even;
  VI16 odd;
};

HWY_INLINE EvenOdd load_even_odd(const uint8_t* row) {
  const VU16 both = hn::BitCast(U16(), hn::LoadU(U8(), row));
  return {hn::BitCast(I16(), hn::And(both, hn::Set(U16(), 0xFF))), hn::BitCast(I16(), hn::ShiftRight<8>(both))};
}

HWY_INLINE void store_even_odd(VI16 even, VI16 odd, uint8_t* out) {
  alignas(16) static constexpr uint8_t kInterleave[16] = {0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15};
  hn::StoreU(hn::TableLookupBytes(pack_blocks(even, odd), hn::LoadDup128(U8(), kInterleave)), U8(), out);
}

struct Rgb {
  VI16 r;
  VI16 g;
  VI16 b;
};

/// The integer form of ITU-R BT.601 that the JPEG library uses: 16-bit fractions, red and blue rounded each alone,
/// green once. The constants below give the same results for all 256 values (a test walks them).
/// @param cb, cr  minus 128
HWY_INLINE Rgb convert(VI16 y, VI16 cb, VI16 cr) {
  const I16 d16;
  const I32 d32;
  const VI16 r = hn::Add(hn::Add(y, cr), hn::MulFixedPoint15(cr, hn::Set(d16, 13173)));  // 1.402 = 1 + 0.402
  const VI16 b =
      hn::Add(hn::Add(y, hn::Add(cb, cb)), hn::MulFixedPoint15(cb, hn::Set(d16, -7471)));  // 1.772 = 2 - 0.228
  // -0.34414 and 1 - 0.71414; the missing -1 times cr is subtracted afterwards, so that both factors fit 16 bits.
  const VI16 factors =
      hn::BitCast(d16, hn::Set(d32, static_cast<int32_t>((18734u << 16) | (static_cast<uint32_t>(-22554) & 0xFFFFu))));
  const VI32 half = hn::Set(d32, 1 << 15);
  const VI32 low = dot_pairs(hn::InterleaveLower(d16, cb, cr), factors, half);
  const VI32 high = dot_pairs(hn::InterleaveUpper(d16, cb, cr), factors, half);
  const VI16 g = hn::Sub(hn::Add(y, pack_blocks(hn::ShiftRight<16>(low), hn::ShiftRight<16>(high))), cr);
  return {r, g, b};
}

HWY_INLINE void convert_and_store(const uint8_t* y_row, EvenOdd cb, EvenOdd cr, size_t at, uint8_t* r, uint8_t* g,
                                  uint8_t* b) {
  const EvenOdd y = load_even_odd(y_row + at);
  const Rgb even = convert(y.even, cb.even, cr.even);
  const Rgb odd = convert(y.odd, cb.odd, cr.odd);
  store_even_odd(even.r, odd.r, r + at);
  store_even_odd(even.g, odd.g, g + at);
  store_even_odd(even.b, odd.b, b + at);
}

/// What the horizontal triangle filter starts from: 3 * near + far, or the row itself, as int16 with copies of both
/// ends around it.
template <bool kHalfHeight>
HWY_INLINE void column_sums(const uint8_t* near, const uint8_t* far, size_t n, int16_t* sums) {
  const I16 d;
  const hn::Half<U8> d8;
  for (size_t i = 0; i < n; i += hn::Lanes(d)) {
    VI16 sum = hn::PromoteTo(d, hn::LoadU(d8, near + i));
    if constexpr (kHalfHeight) {
      sum = hn::Add(hn::Add(sum, hn::Add(sum, sum)), hn::PromoteTo(d, hn::LoadU(d8, far + i)));
    }
    hn::StoreU(sum, d, sums + i);
  }
  sums[-1] = sums[0];
  sums[n] = sums[n - 1];
}

template <bool kHalfHeight>
HWY_INLINE EvenOdd triangle(const int16_t* sums) {
  constexpr int kShift = kHalfHeight ? 4 : 2;
  constexpr int16_t kEven = (kHalfHeight ? 8 : 1) - (128 << kShift);  // rounding, and chroma's offset
  constexpr int16_t kOdd = (kHalfHeight ? 7 : 2) - (128 << kShift);
  const I16 d;
  const VI16 here = hn::LoadU(d, sums);
  const VI16 thrice = hn::Add(here, hn::Add(here, here));
  return {hn::ShiftRight<kShift>(hn::Add(thrice, hn::Add(hn::LoadU(d, sums - 1), hn::Set(d, kEven)))),
          hn::ShiftRight<kShift>(hn::Add(thrice, hn::Add(hn::LoadU(d, sums + 1), hn::Set(d, kOdd))))};
}

template <bool kHalfHeight>
void half_width(const YccRow& row, size_t chroma_width, int16_t* scratch, uint8_t* r, uint8_t* g, uint8_t* b) {
  int16_t* cb_sums = scratch + 16;
  int16_t* cr_sums = cb_sums + chroma_width + 64;
  column_sums<kHalfHeight>(row.near[0], row.far[0], chroma_width, cb_sums);
  column_sums<kHalfHeight>(row.near[1], row.far[1], chroma_width, cr_sums);
  for (size_t i = 0; i < chroma_width; i += hn::Lanes(I16())) {
    convert_and_store(row.y, triangle<kHalfHeight>(cb_sums + i), triangle<kHalfHeight>(cr_sums + i), 2 * i, r, g, b);
  }
}

void full_width(const YccRow& row, size_t width, uint8_t* r, uint8_t* g, uint8_t* b) {
  const VI16 offset = hn::Set(I16(), 128);
  for (size_t x = 0; x < width; x += hn::Lanes(U8())) {
    EvenOdd cb = load_even_odd(row.near[0] + x);
    EvenOdd cr = load_even_odd(row.near[1] + x);
    cb = {hn::Sub(cb.even, offset), hn::Sub(cb.odd, offset)};
    cr = {hn::Sub(cr.even, offset), hn::Sub(cr.odd, offset)};
    convert_and_store(row.y, cb, cr, x, r, g, b);
  }
}

void YccToRgb(ChromaLayout layout, const YccRow& row, int chroma_width, int16_t* scratch,
              const std::array<uint8_t*, 3>& rgb) {
  const auto n = static_cast<size_t>(chroma_width);
  switch (layout) {
    case ChromaLayout::kFull:
      return full_width(row, n, rgb[0], rgb[1], rgb[2]);
    case ChromaLayout::kHalfWidth:
      return half_width<false>(row, n, scratch, rgb[0], rgb[1], rgb[2]);
    case ChromaLayout::kHalfBoth:
      return half_width<true>(row, n, scratch, rgb[0], rgb[1], rgb[2]);
  }
}

void SplitRgb(const uint8_t* interleaved, int width, const std::array<uint8_t*, 3>& rgb) {
  const U8 d;
  for (size_t x = 0; x < static_cast<size_t>(width); x += hn::Lanes(d)) {
    VU8 r, g, b;
    hn::LoadInterleaved3(d, interleaved + 3 * x, r, g, b);
    hn::StoreU(r, d, rgb[0] + x);
    hn::StoreU(g, d, rgb[1] + x);
    hn::StoreU(b, d, rgb[2] + x);
  }
}

}  // namespace stoker::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace stoker {

HWY_EXPORT(YccToRgb);
HWY_EXPORT(SplitRgb);

void ycc_to_rgb(ChromaLayout layout, const YccRow& row, int chroma_width, std::int16_t* scratch,
                const std::array<std::uint8_t*, 3>& rgb) {
  if (const WideKernels* wide = wide_kernels()) return wide->ycc_to_rgb(layout, row, chroma_width, scratch, rgb);
  HWY_DYNAMIC_DISPATCH(YccToRgb)(layout, row, chroma_width, scratch, rgb);
}

void split_rgb(const std::uint8_t* interleaved, int width, const std::array<std::uint8_t*, 3>& rgb) {
  HWY_DYNAMIC_DISPATCH(SplitRgb)(interleaved, width, rgb);
}

}  // namespace stoker
#endif  // HWY_ONCE

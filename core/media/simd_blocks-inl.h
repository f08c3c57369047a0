// Included once per Highway target (see foreach_target.h): vectors of at most 32 bytes, and the few operations whose
// order inside 128-bit blocks the kernels rely on.
#if defined(STOKER_MEDIA_SIMD_BLOCKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STOKER_MEDIA_SIMD_BLOCKS_INL_H_
#undef STOKER_MEDIA_SIMD_BLOCKS_INL_H_
#else
#define STOKER_MEDIA_SIMD_BLOCKS_INL_H_
#endif

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace stoker::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// x86 has per-block packs of any width; elsewhere one block per vector gives the same order.
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
inline constexpr size_t kVectorBytes = 32;
#else
inline constexpr size_t kVectorBytes = 16;
#endif

using U8 = hn::FixedTag<uint8_t, kVectorBytes>;
using U16 = hn::FixedTag<uint16_t, kVectorBytes / 2>;
using I16 = hn::FixedTag<int16_t, kVectorBytes / 2>;
using I32 = hn::FixedTag<int32_t, kVectorBytes / 4>;
using VU8 = hn::Vec<U8>;
using VU16 = hn::Vec<U16>;
using VI16 = hn::Vec<I16>;
using VI32 = hn::Vec<I32>;

/// sum + a[2i] * b[2i] + a[2i + 1] * b[2i + 1] in lane i.
HWY_INLINE VI32 dot_pairs(VI16 a, VI16 b, VI32 sum) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  return hn::Add(sum, VI32{_mm256_madd_epi16(a.raw, b.raw)});
#elif HWY_TARGET == HWY_SSE4 || HWY_TARGET == HWY_SSSE3
  return hn::Add(sum, VI32{_mm_madd_epi16(a.raw, b.raw)});
#else
  const I32 d;
  const VI32 a_even = hn::ShiftRight<16>(hn::ShiftLeft<16>(hn::BitCast(d, a)));
  const VI32 b_even = hn::ShiftRight<16>(hn::ShiftLeft<16>(hn::BitCast(d, b)));
  const VI32 a_odd = hn::ShiftRight<16>(hn::BitCast(d, a));
  const VI32 b_odd = hn::ShiftRight<16>(hn::BitCast(d, b));
  return hn::Add(sum, hn::Add(hn::Mul(a_even, b_even), hn::Mul(a_odd, b_odd)));
#endif
}

/// Saturated to int16; in every 128-bit block the four lanes of `a`, then the four of `b`.
HWY_INLINE VI16 pack_blocks(VI32 a, VI32 b) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  return VI16{_mm256_packs_epi32(a.raw, b.raw)};
#else
  const hn::Half<I16> half;
  return hn::Combine(I16(), hn::DemoteTo(half, b), hn::DemoteTo(half, a));
#endif
}

/// Saturated to uint8; in every 128-bit block the eight lanes of `a`, then the eight of `b`.
HWY_INLINE VU8 pack_blocks(VI16 a, VI16 b) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  return VU8{_mm256_packus_epi16(a.raw, b.raw)};
#else
  const hn::Half<U8> half;
  return hn::Combine(U8(), hn::DemoteTo(half, b), hn::DemoteTo(half, a));
#endif
}

}  // namespace stoker::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle

#include "media/float_kernels.h"

#include "media/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "media/float_kernels.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace stoker::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Products and sums stay apart (no fused multiply-add), because not every target could fuse.
using F32 = hn::CappedTag<float, kFloatGroup>;
using VF32 = hn::Vec<F32>;

void FloatAcross(const float* source, const int32_t* first, const float* weights, int n_taps, int stride, int n,
                 float* out) {
  const F32 d;
  const hn::RebindToSigned<F32> di;
  for (int x = 0; x < n; x += static_cast<int>(hn::Lanes(d))) {
    const auto from = hn::LoadU(di, first + x);
    VF32 sum = hn::Mul(hn::GatherIndex(d, source, from), hn::LoadU(d, weights + x));
    for (int t = 1; t < n_taps; ++t) {
      const VF32 weight = hn::LoadU(d, weights + static_cast<ptrdiff_t>(t) * stride + x);
      sum = hn::Add(sum, hn::Mul(hn::GatherIndex(d, source + t, from), weight));
    }
    hn::StoreU(sum, d, out + x);
  }
}

void FloatDown(const float* const* rows, const float* weights, int n_taps, int n, uint8_t* out) {
  const F32 d;
  const hn::Rebind<uint8_t, F32> d8;
  for (int x = 0; x < n; x += static_cast<int>(hn::Lanes(d))) {
    VF32 sum = hn::Mul(hn::LoadU(d, rows[0] + x), hn::Set(d, weights[0]));
    for (int t = 1; t < n_taps; ++t) sum = hn::Add(sum, hn::Mul(hn::LoadU(d, rows[t] + x), hn::Set(d, weights[t])));
    const VF32 clamped = hn::Min(hn::Max(sum, hn::Zero(d)), hn::Set(d, 255.0F));
    hn::StoreU(hn::DemoteTo(d8, hn::NearestInt(clamped)), d8, out + x);
  }
}

void FloatsOf(const uint8_t* row, int n, float* out) {
  const F32 d;
  const hn::RebindToSigned<F32> di;
  const hn::Rebind<uint8_t, F32> d8;
  for (int x = 0; x < n; x += static_cast<int>(hn::Lanes(d))) {
    hn::StoreU(hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d8, row + x))), d, out + x);
  }
}

}  // namespace stoker::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace stoker {

HWY_EXPORT(FloatAcross);
HWY_EXPORT(FloatDown);
HWY_EXPORT(FloatsOf);

void float_across(const float* source, const std::int32_t* first, const float* weights, int n_taps, int stride, int n,
                  float* out) {
  HWY_DYNAMIC_DISPATCH(FloatAcross)(source, first, weights, n_taps, stride, n, out);
}
void float_down(const float* const* rows, const float* weights, int n_taps, int n, std::uint8_t* out) {
  HWY_DYNAMIC_DISPATCH(FloatDown)(rows, weights, n_taps, n, out);
}
void floats_of(const std::uint8_t* row, int n, float* out) { HWY_DYNAMIC_DISPATCH(FloatsOf)(row, n, out); }

}  // namespace stoker
#endif  // HWY_ONCE

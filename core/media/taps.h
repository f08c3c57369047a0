#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "media/image.h"

namespace stoker {

/// How weights are rounded.
enum class Weights : std::uint8_t {
  kInt16,   ///< int16 with the largest precision that fits the axis (ATen's uint8 kernel)
  k22Bits,  ///< 22 fraction bits (Pillow)
};

/// Low bits that a weight of 22 fraction bits gives to its second part, so that both parts are int16 factors.
inline constexpr int kPartBits = 11;
inline constexpr int kPillowBits = 22;

/// The taps of one axis: output i is the rounded sum of `count[i]` source samples from `first[i]` on, weighted with
/// `precision` fraction bits.
struct AxisTaps {
  int n_source = 0;
  int n_out = 0;
  int precision = 1;
  int n_parts = 1;  ///< int16 factors that a weight takes: 1, or 2 with kPartBits in the second
  int max_count = 0;
  std::vector<std::int32_t> first;    // (n_out)
  std::vector<std::int32_t> count;    // (n_out)
  std::vector<std::int32_t> weights;  // (n_out, stride)
  int stride = 0;

  bool is_identity = false;
  const std::int32_t* weights_of(int i) const { return weights.data() + static_cast<std::ptrdiff_t>(i) * stride; }
  /// A weight as factors: itself; or its high bits and its low ones, which are not negative.
  std::array<std::int16_t, 2> parts_of(std::int32_t weight) const {
    if (n_parts == 1) return {static_cast<std::int16_t>(weight), 0};
    return {static_cast<std::int16_t>(weight >> kPartBits), static_cast<std::int16_t>(weight & ((1 << kPartBits) - 1))};
  }
};

/// Bicubic taps (a = -0.5, antialiased), weights in double, then rounded. Zero weights at both ends are dropped, which
/// changes no result. An unchanged axis gets one tap of weight one.
/// @param is_reversed  The source runs backwards (a mirrored picture): tap positions count from the stored picture's
/// beginning, while
///                     output i stays output i of the upright picture.
/// Source: pytorch aten/src/ATen/native/cpu/UpSampleKernel.cpp and UpSampleKernelAVXAntialias.h, torch 2.13;
///         Pillow src/libImaging/Resample.c, 13.0.
void make_taps(int n_source, int n_out, bool is_reversed, Weights kind, AxisTaps& taps);

/// Whether this resizer passes over the columns before the rows, sizes being those of the upright picture.
/// Source: Pillow src/libImaging/Resample.c, 12.1, 12.2 and 13.0; torch 2.13 (never).
bool is_vertical_first(Resizer resizer, int source_height, int source_width, int height, int width);

}  // namespace stoker

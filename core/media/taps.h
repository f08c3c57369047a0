#pragma once

#include <cstdint>
#include <vector>

namespace stoker {

/// The taps of one axis: output i is the rounded sum of `count[i]` source samples from `first[i]` on, weighted in int16
/// with `precision` fraction bits.
struct AxisTaps {
  int n_source = 0;
  int n_out = 0;
  int precision = 1;
  int max_count = 0;
  std::vector<std::int32_t> first;    // (n_out)
  std::vector<std::int32_t> count;    // (n_out)
  std::vector<std::int16_t> weights;  // (n_out, stride)
  int stride = 0;

  bool is_identity = false;
  const std::int16_t* weights_of(int i) const { return weights.data() + static_cast<std::ptrdiff_t>(i) * stride; }
};

/// Bicubic taps (a = -0.5, antialiased) of ATen's uint8 kernel: weights in double, int16 with the largest precision
/// that fits the axis. Zero weights at both ends are dropped, which changes no result. An unchanged axis gets one tap
/// of weight one.
/// @param is_reversed  The source runs backwards (a mirrored picture): tap positions count from the stored picture's
/// beginning, while
///                     output i stays output i of the upright picture.
/// Source: pytorch aten/src/ATen/native/cpu/UpSampleKernel.cpp and UpSampleKernelAVXAntialias.h, torch 2.13.
void make_taps(int n_source, int n_out, bool is_reversed, AxisTaps& taps);

}  // namespace stoker

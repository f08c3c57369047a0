#pragma once

#include <cstdint>

namespace stoker {

/// Outputs that one step of the kernels below makes; rows hold whole steps.
inline constexpr int kFloatGroup = 16;

/// One row of one plane: out[x] = sum over t of source[first[x] + t] * weights[t * stride + x], each product and each
/// sum rounded to float32, in the order of t: the same bits on every instruction set.
/// @param n  Outputs, a multiple of kFloatGroup; all indices must be readable and hold finite numbers.
void float_across(const float* source, const std::int32_t* first, const float* weights, int n_taps, int stride, int n,
                  float* out);

/// One row of one plane from rows: out[x] = sum over t of rows[t][x] * weights[t], clamped to 0..255 and rounded half
/// to even. `n` as above.
void float_down(const float* const* rows, const float* weights, int n_taps, int n, std::uint8_t* out);

/// `n` as above.
void floats_of(const std::uint8_t* row, int n, float* out);

}  // namespace stoker

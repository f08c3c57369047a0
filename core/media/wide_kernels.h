#pragma once

#include "media/colour_kernels.h"
#include "media/resample_kernels.h"

namespace stoker {

/// The same kernels with vectors of 64 bytes: a group of 16 pixels is one vector of int16 pairs, and 16 pixels of four
/// rows are one line. For CPUs that permute bytes across such a vector and add products in one step (AVX-512 with VBMI
/// and VNNI: Intel since Ice Lake, AMD since Zen 4); those with AVX-512 alone lower their clock for wide vectors and
/// stay with 32 bytes. Contracts are those of resample_kernels.h and colour_kernels.h.
struct WideKernels {
  decltype(stoker::horizontal_pair)* horizontal_pair;  ///< form kWide only
  decltype(stoker::zip_pair)* zip_pair;
  decltype(stoker::vertical_rows)* vertical_rows;
  decltype(stoker::vertical_quad)* vertical_quad;
  decltype(stoker::copy_quad)* copy_quad;
  decltype(stoker::ycc_to_rgb)* ycc_to_rgb;
};

/// Null where this CPU lacks something, or where a test chose another of Highway's targets than AVX3_DL.
const WideKernels* wide_kernels();

}  // namespace stoker

#include "media/taps.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace stoker {
namespace {

double bicubic(double u) {
  const double v = std::fabs(u);
  if (v < 1) return ((1.5 * v - 2.5) * v) * v + 1;
  if (v < 2) return -0.5 * (((v - 5) * v + 8) * v - 4);
  return 0;
}

std::int32_t quantise(double weight, int precision) {
  const double scaled = weight * static_cast<double>(std::int64_t{1} << precision);
  return static_cast<std::int32_t>(scaled + (weight < 0 ? -0.5 : 0.5));
}

void identity(int n, bool is_reversed, AxisTaps& taps) {
  taps.precision = 14;
  taps.n_parts = 1;
  taps.max_count = 1;
  taps.stride = 1;
  taps.is_identity = !is_reversed;
  const auto size = static_cast<std::size_t>(n);
  taps.count.assign(size, 1);
  taps.weights.assign(size, 1 << 14);
  taps.first.resize(size);
  for (int i = 0; i < n; ++i) taps.first[static_cast<std::size_t>(i)] = is_reversed ? n - 1 - i : i;
}

/// The largest precision at which every weight of the axis fits int16.
int int16_precision(double largest) {
  int precision = 0;
  while (precision < 22 && static_cast<std::int64_t>(
                               0.5 + largest * static_cast<double>(std::int64_t{1} << (precision + 1))) < (1 << 15)) {
    ++precision;
  }
  return precision;
}

}  // namespace

bool is_vertical_first(Resizer resizer, int source_height, int source_width, int height, int width) {
  const std::int64_t lost_height = static_cast<std::int64_t>(source_height) - height;
  const std::int64_t lost_width = static_cast<std::int64_t>(source_width) - width;
  switch (resizer) {
    case Resizer::kPillow13:
      return lost_height > 0 && lost_height > 2 * lost_width;
    case Resizer::kPillow12_2:
      return lost_height > 0 && source_height > std::int64_t{100} * source_width;
    case Resizer::kAten:
    case Resizer::kPillow:
    case Resizer::kFloat:
      break;
  }
  return false;
}

void make_taps(int n_source, int n_out, bool is_reversed, Weights kind, AxisTaps& taps) {
  taps.n_source = n_source;
  taps.n_out = n_out;
  taps.is_identity = false;
  if (n_source == n_out) return identity(n_source, is_reversed, taps);

  const double scale = static_cast<double>(n_source) / n_out;
  const double stretch = std::max(scale, 1.0);
  const double support = 2.0 * stretch;
  const double inverse = 1.0 / stretch;
  const int bound = static_cast<int>(std::ceil(support)) * 2 + 1;
  const auto rows = static_cast<std::size_t>(n_out);
  const auto stride = static_cast<std::size_t>(bound);
  thread_local std::vector<double> real;  // (n_out, bound): kept, so that a picture allocates nothing
  real.resize(rows * stride);
  double* const raw = real.data();
  taps.first.resize(rows);
  taps.count.resize(rows);

  double largest = 0;
  for (std::size_t i = 0; i < rows; ++i) {
    const double centre = (static_cast<double>(i) + 0.5) * scale;
    const int lo = std::max(0, static_cast<int>(centre - support + 0.5));
    const int n = std::clamp(std::min(n_source, static_cast<int>(centre + support + 0.5)) - lo, 0, bound);
    double* weights = raw + i * stride;
    double total = 0;
    for (int j = 0; j < n; ++j) {
      weights[j] = bicubic((j + lo - centre + 0.5) * inverse);
      total += weights[j];
    }
    for (int j = 0; j < n; ++j) {
      if (total != 0) weights[j] /= total;
      largest = std::max(largest, weights[j]);
    }
    taps.first[i] = lo;
    taps.count[i] = n;
  }

  taps.n_parts = kind == Weights::k22Bits ? 2 : 1;
  taps.precision = kind == Weights::k22Bits ? kPillowBits : int16_precision(largest);

  taps.stride = bound;
  taps.weights.resize(rows * stride);
  taps.max_count = 1;
  for (std::size_t i = 0; i < rows; ++i) {
    const double* weights = raw + i * stride;
    std::int32_t* out = taps.weights.data() + i * stride;
    int begin = 0;
    int end = taps.count[i];
    while (end > begin + 1 && quantise(weights[end - 1], taps.precision) == 0) --end;
    while (begin + 1 < end && quantise(weights[begin], taps.precision) == 0) ++begin;
    for (int j = begin; j < end; ++j) {
      const int to = is_reversed ? end - 1 - j : j - begin;
      out[to] = quantise(weights[j], taps.precision);
    }
    taps.count[i] = end - begin;
    taps.first[i] = is_reversed ? n_source - (taps.first[i] + end) : taps.first[i] + begin;
    taps.max_count = std::max(taps.max_count, end - begin);
  }
}

}  // namespace stoker

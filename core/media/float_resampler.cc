#include "media/float_resampler.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "media/float_kernels.h"

namespace stoker {
namespace {

/// Fused as torch's x86 builds have it: without, one sample in ten thousand comes out otherwise, with it one in two
/// hundred thousand.
float bicubic(float u) {
  const float v = std::fabs(u);
  if (v < 1) return std::fma(std::fma(1.5F, v, -2.5F) * v, v, 1.0F);
  if (v < 2) return std::fma(std::fma(std::fma(-0.5F, v, 2.5F), v, -4.0F), v, 2.0F);
  return 0;
}

}  // namespace

/// Floats where torch has floats, doubles where its expressions promote to them.
void FloatResampler::make_axis(int n_source, int n_out, Axis& axis) {
  const float scale = static_cast<float>(n_source) / static_cast<float>(n_out);
  const float support = scale >= 1 ? 2.0F * scale : 2.0F;
  const float inverse = scale >= 1 ? static_cast<float>(1.0 / static_cast<double>(scale)) : 1.0F;
  const int bound = static_cast<int>(std::ceil(support)) * 2 + 1;
  axis.stride = bound;
  axis.max_count = 1;
  axis.first.resize(static_cast<std::size_t>(n_out));
  axis.count.resize(static_cast<std::size_t>(n_out));
  axis.weights.assign(static_cast<std::size_t>(n_out) * static_cast<std::size_t>(bound), 0.0F);
  for (std::size_t i = 0; i < static_cast<std::size_t>(n_out); ++i) {
    const auto centre = static_cast<float>(static_cast<double>(scale) * (static_cast<double>(i) + 0.5));
    const int lo = std::max(0, static_cast<int>(static_cast<double>(centre - support) + 0.5));
    const int hi = std::min(n_source, static_cast<int>(static_cast<double>(centre + support) + 0.5));
    const int n = std::clamp(hi - lo, 0, bound);
    float* weights = axis.weights.data() + i * static_cast<std::size_t>(bound);
    float total = 0;
    for (int j = 0; j < n; ++j) {
      const auto offset = static_cast<double>(static_cast<float>(j + lo) - centre) + 0.5;
      weights[j] = bicubic(static_cast<float>(offset * static_cast<double>(inverse)));
      total += weights[j];
    }
    if (total != 0) {
      for (int j = 0; j < n; ++j) weights[j] /= total;
    }
    axis.first[i] = lo;
    axis.count[i] = n;
    axis.max_count = std::max(axis.max_count, n);
  }
}

void FloatResampler::start(int source_height, int source_width, int height, int width, RowTarget& target) {
  source_height_ = source_height;
  source_width_ = source_width;
  height_ = height;
  target_ = &target;
  n_rows_ = 0;
  next_ = 0;
  make_axis(source_width, width, across_);
  make_axis(source_height, height, down_);

  const std::size_t n_out = round_up(static_cast<std::size_t>(width), kFloatGroup);
  n_out_ = static_cast<int>(n_out);
  across_first_.assign(n_out, 0);
  across_weights_.assign(n_out * static_cast<std::size_t>(across_.max_count), 0.0F);
  for (std::size_t x = 0; x < static_cast<std::size_t>(width); ++x) {
    across_first_[x] = across_.first[x];
    for (std::size_t t = 0; t < static_cast<std::size_t>(across_.count[x]); ++t) {
      across_weights_[t * n_out + x] = across_.weights[x * static_cast<std::size_t>(across_.stride) + t];
    }
  }
  source_.assign(
      round_up(static_cast<std::size_t>(source_width), kFloatGroup) + static_cast<std::size_t>(across_.max_count),
      0.0F);

  ring_rows_ = 1;
  int newest = 0;  // source row that has arrived, pairs at a time, when an output row is made
  for (std::size_t y = 0; y < static_cast<std::size_t>(height); ++y) {
    newest = std::max(newest, down_.first[y] + down_.count[y]);
    ring_rows_ = std::max(ring_rows_, newest + 2 - down_.first[y]);
  }
  ring_stride_ = n_out;
  ring_ = ring_memory_.get<float>(static_cast<std::size_t>(ring_rows_) * 3 * ring_stride_);
  pointers_.resize(static_cast<std::size_t>(down_.max_count));
  row_.resize(n_out);
}

Status FloatResampler::take(int first, const RowPair& pair) {
  for (std::size_t i = 0; i < 2 && n_rows_ < std::min(first + 2, source_height_); ++i) take_row(pair, i);
  while (next_ < height_) {
    const auto y = static_cast<std::size_t>(next_);
    if (down_.first[y] + down_.count[y] > n_rows_) break;
    emit(next_++);
  }
  return {};
}

void FloatResampler::take_row(const RowPair& pair, std::size_t i) {
  for (std::size_t c = 0; c < 3; ++c) {
    floats_of(pair.rows[i][c], static_cast<int>(round_up(static_cast<std::size_t>(source_width_), kFloatGroup)),
              source_.data());
    float_across(source_.data(), across_first_.data(), across_weights_.data(), across_.max_count, n_out_, n_out_,
                 ring_row(n_rows_, static_cast<int>(c)));
  }
  ++n_rows_;
}

void FloatResampler::emit(int y) {
  const auto at = static_cast<std::size_t>(y);
  const int n = std::max(1, down_.count[at]);
  const std::uint32_t* offsets = target_->group_offsets();
  for (int c = 0; c < 3; ++c) {
    for (int t = 0; t < n; ++t) pointers_[static_cast<std::size_t>(t)] = ring_row(down_.first[at] + t, c);
    float_down(pointers_.data(), down_.weights.data() + at * static_cast<std::size_t>(down_.stride), n, n_out_,
               row_.data());
    std::uint8_t* to = target_->row(y, c);
    for (int x = 0; x < n_out_; x += kGroupPixels)
      std::memcpy(to + offsets[x / kGroupPixels], &row_[static_cast<std::size_t>(x)], kGroupPixels);
  }
  target_->finish(y);
}

}  // namespace stoker

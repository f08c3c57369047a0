#pragma once

#include <cstdint>
#include <vector>

#include "media/resampler.h"
#include "media/row_sink.h"
#include "media/scratch.h"

namespace stoker {

/// Resizes an upright picture as torch does on floats (bicubic, antialiased, horizontal pass first, nothing rounded in
/// between), then clamps and rounds to 8 bits. The same bits on every CPU; torch's own builds fuse multiplications and
/// additions as they like, so up to one sample in ten thousand may differ from one of them.
/// Threads: one. Memory: the rows that the vertical filter reaches, as floats; kept.
/// Source: pytorch aten/src/ATen/native/cpu/UpSampleKernel.cpp, torch 2.13.
class FloatResampler final : public RowSink {
 public:
  /// `target` is borrowed until its last row.
  void start(int source_height, int source_width, int height, int width, RowTarget& target);
  Status take(int first, const RowPair& pair) override;

 private:
  struct Axis {
    std::vector<std::int32_t> first;  // (n_out)
    std::vector<std::int32_t> count;  // (n_out)
    std::vector<float> weights;       // (n_out, stride)
    int stride = 0;
    int max_count = 1;
  };
  static void make_axis(int n_source, int n_out, Axis& axis);
  void take_row(const RowPair& pair, std::size_t i);
  void emit(int y);
  float* ring_row(int row, int c) {
    return ring_ + (static_cast<std::size_t>(row % ring_rows_) * 3 + static_cast<std::size_t>(c)) * ring_stride_;
  }

  int source_height_ = 0;
  int source_width_ = 0;
  int height_ = 0;
  int n_out_ = 0;  // samples of a row, whole groups
  RowTarget* target_ = nullptr;
  Axis across_;
  Axis down_;
  std::vector<std::int32_t> across_first_;  // (n_out_)
  std::vector<float> across_weights_;       // (taps, n_out_)
  std::vector<float> source_;               // one row of one plane, with zeros behind it
  Scratch ring_memory_;
  float* ring_ = nullptr;
  std::size_t ring_stride_ = 0;
  int ring_rows_ = 1;
  std::vector<const float*> pointers_;
  std::vector<std::uint8_t> row_;
  int n_rows_ = 0;  // that have arrived
  int next_ = 0;
};

}  // namespace stoker

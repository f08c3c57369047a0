#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "media/resample_kernels.h"
#include "media/row_sink.h"
#include "media/scratch.h"
#include "media/taps.h"

namespace stoker {

/// Where resized rows go. Rows come in fours (4k to 4k + 3), ascending or, for a picture stored upside down,
/// descending.
class RowTarget {
 public:
  virtual ~RowTarget() = default;
  /// Where row `y` of plane `c` begins; 16 pixels of group g are written at group_offsets()[g] from there.
  virtual std::uint8_t* row(int y, int c) = 0;
  virtual const std::uint32_t* group_offsets() const = 0;
  /// Whether rows y to y + 3 (y a multiple of 4) lie behind one another, 64 aligned bytes per group.
  virtual bool has_lines() const = 0;
  /// All planes of row `y` are written.
  virtual void finish(int y) = 0;
};

/// Which way the stored picture is turned against what the target wants.
struct Mirror {
  bool is_left_right = false;
  bool is_upside_down = false;
};

/// What becomes of one picture. Rows and columns are those of the stored picture: one on its side (EXIF orientations 5
/// to 8) is resized as it lies, and its target turns it.
struct ResampleJob {
  int source_height = 0;
  int source_width = 0;
  int height = 0;
  int width = 0;
  Mirror mirror;
  Weights weights = Weights::kInt16;
  bool is_down_first = false;  ///< the pass along the columns comes first
};

/// Resizes a picture that arrives in pairs of rows; between the passes samples are rounded to 8 bits. Across first:
/// horizontal pass at once, into a ring of row pairs; vertical pass as soon as the rows that an output row needs are
/// there. Down first: the ring holds source rows, the vertical pass makes rows of the source's width, and the
/// horizontal one finishes them. Holds no more of the picture than the vertical filter reaches. Threads: one.
class Resampler final : public RowSink {
 public:
  /// Prepares for one picture; `target` is borrowed until its last row.
  void start(const ResampleJob& job, RowTarget& target);
  Status take(int first, const RowPair& pair) override;
  /// Whether every output row was written.
  bool is_complete() const { return next_step_ == n_steps_; }

 private:
  void make_horizontal();
  int spread(int n_outputs) const;
  bool is_wide(int n_pairs);
  void make_windows(int n_outputs, int n_pairs);
  void make_dots();
  void make_vertical();
  void make_strip();
  struct Rows {
    int begin;
    int end;
  };
  Rows rows_of(int step) const;
  VerticalView view_of(int y0, int y1, int c, std::size_t slot);
  bool is_ready(int step) const;
  void emit(int step);
  void emit_down_first(int step);
  void put_pairs(int begin, int end);
  bool is_copy() const { return across_.is_identity && job_.source_height == job_.height; }
  void copy_rows(int first, const RowPair& pair);
  void copy_lines(int first, const RowPair& pair);
  std::int16_t* ring_row(int slot, int c) {
    return ring_ + (static_cast<std::size_t>(slot) * 3 + static_cast<std::size_t>(c)) * ring_stride_;
  }
  std::uint8_t* strip_row(int i, int c) {
    return strip_ + (static_cast<std::size_t>(i) * 3 + static_cast<std::size_t>(c)) * strip_stride_;
  }

  ResampleJob job_;
  int n_groups_ = 0;  // of an output row
  RowTarget* target_ = nullptr;

  AxisTaps across_;  // horizontal
  AxisTaps down_;    // vertical
  HorizontalView horizontal_{};
  Scratch table_memory_;
  Scratch base_memory_;
  Scratch fewer_memory_;

  // vertical: per output row its first pair, and (height, stride, parts) weights of pairs
  int vertical_stride_ = 0;
  int vertical_groups_ = 0;  // of the rows in the ring
  std::vector<std::int32_t> first_pair_;
  std::vector<std::int32_t> n_pairs_;
  Scratch weight_memory_;
  std::int32_t* pair_weights_ = nullptr;
  std::array<std::vector<const std::int16_t*>, 4> pair_pointers_;

  Scratch ring_memory_;
  std::int16_t* ring_ = nullptr;
  std::size_t ring_stride_ = 0;  // int16 per plane of a pair
  int ring_pairs_ = 1;

  // down first: four rows between the passes, and as pairs behind the second one; also rows that wait to be copied
  bool is_down_first_ = false;
  Scratch strip_memory_;
  std::uint8_t* strip_ = nullptr;
  std::size_t strip_stride_ = 0;
  std::vector<std::uint32_t> strip_offsets_;
  Scratch finished_memory_;
  std::int16_t* finished_ = nullptr;  // (2, 3, stride)
  std::size_t finished_stride_ = 0;

  int n_steps_ = 0;  // of two output rows
  int next_step_ = 0;
  int n_rows_ = 0;  // source rows that have arrived
};

}  // namespace stoker

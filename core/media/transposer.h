#pragma once

#include <cstdint>

#include "media/row_sink.h"
#include "media/scratch.h"

namespace stoker {

/// Holds a picture stored on its side (EXIF orientations 5 to 8) until it is whole, and hands it on upright.
/// Memory: three planes of the picture, kept; see transposed_bytes.
class Transposer final : public RowSink {
 public:
  /// Sizes are those of the stored picture.
  void start(int source_height, int source_width, int orientation);
  Status take(int first, const RowPair& pair) override;
  /// All rows have come: sends the upright picture's.
  Status send(RowSink& to);
  static std::size_t transposed_bytes(int source_height, int source_width);

 private:
  int height_ = 0;  // upright
  int width_ = 0;
  int source_height_ = 0;
  bool is_x_reversed_ = false;  // upright column = height of the source - 1 - source row
  bool is_y_reversed_ = false;
  std::size_t stride_ = 0;
  std::uint8_t* planes_ = nullptr;
  Scratch memory_;
};

}  // namespace stoker

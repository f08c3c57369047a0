#include "media/transposer.h"

#include <algorithm>
#include <array>

namespace stoker {

std::size_t Transposer::transposed_bytes(int source_height, int source_width) {
  return 3 * static_cast<std::size_t>(source_width) *
         (round_up(static_cast<std::size_t>(source_height), 64) + kRowSlackBytes);
}

void Transposer::start(int source_height, int source_width, int orientation) {
  height_ = source_width;
  width_ = source_height;
  source_height_ = source_height;
  is_x_reversed_ = orientation == 6 || orientation == 7;
  is_y_reversed_ = orientation == 7 || orientation == 8;
  stride_ = round_up(static_cast<std::size_t>(width_), 64) + kRowSlackBytes;
  planes_ = memory_.get<std::uint8_t>(transposed_bytes(source_height, source_width));
}

Status Transposer::take(int first, const RowPair& pair) {
  const std::size_t plane_bytes = static_cast<std::size_t>(height_) * stride_;
  for (int i = 0; i < 2 && first + i < source_height_; ++i) {
    const int x = is_x_reversed_ ? source_height_ - 1 - (first + i) : first + i;
    for (std::size_t c = 0; c < 3; ++c) {
      const std::uint8_t* from = pair.rows[static_cast<std::size_t>(i)][c];
      std::uint8_t* plane = planes_ + c * plane_bytes;
      for (int k = 0; k < height_; ++k) {
        const int y = is_y_reversed_ ? height_ - 1 - k : k;
        plane[static_cast<std::size_t>(y) * stride_ + static_cast<std::size_t>(x)] = from[k];
      }
    }
  }
  return {};
}

Status Transposer::send(RowSink& to) {
  const std::size_t plane_bytes = static_cast<std::size_t>(height_) * stride_;
  for (int y = 0; y < height_; y += 2) {
    RowPair pair{};
    for (std::size_t i = 0; i < 2; ++i) {
      const auto row = static_cast<std::size_t>(std::min(y + static_cast<int>(i), height_ - 1));
      for (std::size_t c = 0; c < 3; ++c) pair.rows[i][c] = planes_ + c * plane_bytes + row * stride_;
    }
    STOKER_CHECKED(to.take(y, pair));
  }
  return {};
}

}  // namespace stoker

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "media/image.h"
#include "media/row_sink.h"
#include "media/scratch.h"

namespace stoker {

/// Gives a sink a picture that is made row by row.
class RowFeeder {
 public:
  using Planes = std::array<std::uint8_t*, 3>;

  /// Calls fill(y, planes) for each row, top to bottom; it writes `width` samples to each plane and returns a Status.
  template <typename Fill>
  Status feed(int height, int width, RowSink& sink, Fill fill) {
    const std::size_t stride = round_up(static_cast<std::size_t>(width), 64) + kRowSlackBytes;
    auto* memory = memory_.get<std::uint8_t>(6 * stride);
    for (int y = 0; y < height; y += 2) {
      RowPair pair{};
      for (int i = 0; i < 2; ++i) {
        const bool is_there = y + i < height;
        std::uint8_t* plane = memory + (is_there ? static_cast<std::size_t>(i) * 3 * stride : 0);
        const Planes to = {plane, plane + stride, plane + 2 * stride};
        pair.rows[static_cast<std::size_t>(i)] = {to[0], to[1], to[2]};
        if (is_there) STOKER_CHECKED(fill(y + i, to));
      }
      STOKER_CHECKED(sink.take(y, pair));
    }
    return {};
  }

 private:
  Scratch memory_;  // (2, 3, stride)
};

/// c over white with alpha a, as Pillow's paste rounds it.
inline std::uint8_t on_white(int c, int a) {
  const int t = 255 * (255 - a) + c * a + 128;
  return static_cast<std::uint8_t>(((t >> 8) + t) >> 8);
}

/// Whether a picture with transparency is blended. `is_rgba`: one that Pillow opens in mode RGBA.
inline bool is_blended(AlphaRule rule, bool is_rgba) {
  return rule == AlphaRule::kWhite || (rule == AlphaRule::kWhiteRgba && is_rgba);
}

/// A row of interleaved RGBA.
inline void split_rgba(const std::uint8_t* row, int width, bool blends, const RowFeeder::Planes& to) {
  for (int x = 0; x < width; ++x) {
    const std::uint8_t* px = row + static_cast<std::ptrdiff_t>(x) * 4;
    for (std::size_t c = 0; c < 3; ++c) to[c][x] = blends ? on_white(px[c], px[3]) : px[c];
  }
}

}  // namespace stoker

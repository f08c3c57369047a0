#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/result.h"
#include "media/image.h"

namespace stoker {

/// A GIF up to the pixels of its first frame.
struct GifHeader {
  int height_px = 0;  ///< of the logical screen, enlarged where the first frame reaches beyond it
  int width_px = 0;
  int top = 0;  ///< the frame's place in it
  int left = 0;
  int frame_height = 0;
  int frame_width = 0;
  bool is_interlaced = false;
  std::optional<int> transparent;  ///< colour index
  std::array<std::array<std::uint8_t, 3>, 256> colours{};
  std::size_t pixels_begin = 0;  ///< position of the minimum code size
};

/// @return nothing if `file` ends before the first frame's pixels, `need` then says how many bytes are wanted;
/// IMG_CORRUPT. Source: CompuServe, Graphics Interchange Format, version 89a; what the first frame is: Pillow 13,
/// GifImagePlugin.
Result<std::optional<GifHeader>> read_gif_header(std::span<const std::byte> file, std::size_t& need);

Result<Probe> probe_gif(std::span<const std::byte> prefix, std::uint64_t total_bytes, const ImageLimits& limits);

}  // namespace stoker

#include "media/gif/gif.h"

#include <fmt/format.h>

#include <algorithm>

#include "media/gif/gif_header.h"
#include "media/gif/lzw.h"
#include "media/row_feeder.h"

namespace stoker {
namespace {

/// Which row of the frame the k-th row of an interlaced stream is.
class InterlacedRows {
 public:
  explicit InterlacedRows(int height) : height_(height) {}
  int next() {
    const int row = row_;
    row_ += kStep[pass_];
    while (row_ >= height_ && pass_ < 3) row_ = kStart[++pass_];
    return row;
  }

 private:
  static constexpr std::array<int, 4> kStart = {0, 4, 2, 1};
  static constexpr std::array<int, 4> kStep = {8, 8, 4, 2};
  int height_;
  std::size_t pass_ = 0;
  int row_ = 0;
};

/// Whether another frame follows the first one's blocks, which begin at `at`.
bool has_second_frame(std::span<const std::byte> file, std::size_t at) {
  const auto skip_blocks = [&] {
    while (at < file.size()) {
      const auto n = std::to_integer<std::size_t>(file[at]);
      at += 1 + n;
      if (n == 0) return;
    }
  };
  skip_blocks();
  while (at < file.size()) {
    const int introducer = std::to_integer<int>(file[at]);
    if (introducer == 0x2C) return true;
    if (introducer == 0x3B) return false;
    at += introducer == 0x21 ? 2 : 1;
    if (introducer == 0x21) skip_blocks();
  }
  return false;
}

}  // namespace

struct GifDecoder::Impl {
  GifLzw lzw;
  Scratch frame_memory;  // a row, or the frame when interlaced
  RowFeeder feeder;
};

GifDecoder::GifDecoder() : impl_(std::make_unique<Impl>()) {}
GifDecoder::~GifDecoder() = default;

Status GifDecoder::decode(std::span<const std::byte> file, const ImageInfo& info, const ImageOptions& options,
                          RowSink& sink, ImageNotes& notes) {
  std::size_t need = 0;
  STOKER_TRY(auto header, read_gif_header(file, need));
  if (!header || header->height_px != info.height_px || header->width_px != info.width_px) {
    return {Reason::kInternal, "GIF is not what its probe said"};
  }
  const GifHeader& gif = *header;
  if (has_second_frame(file, gif.pixels_begin + 1)) notes.add(ImageNote::kAnimatedFirstFrame);
  if (gif.transparent && is_blended(options.alpha, false)) {
    header->colours[static_cast<std::size_t>(*gif.transparent)].fill(255);
  }

  STOKER_CHECKED(impl_->lzw.start(file.subspan(gif.pixels_begin + 1), std::to_integer<int>(file[gif.pixels_begin])));
  const auto frame_width = static_cast<std::size_t>(gif.frame_width);
  const auto frame_height = static_cast<std::size_t>(gif.frame_height);
  auto* frame = impl_->frame_memory.get<std::uint8_t>(frame_width * (gif.is_interlaced ? frame_height : 1));
  if (gif.is_interlaced) {
    InterlacedRows rows(gif.frame_height);
    for (int i = 0; i < gif.frame_height; ++i) {
      STOKER_CHECKED(impl_->lzw.read(frame + static_cast<std::size_t>(rows.next()) * frame_width, frame_width));
    }
  }
  // Around the frame lies the transparent colour, else colour 0.
  const auto& around = gif.colours[static_cast<std::size_t>(gif.transparent.value_or(0))];
  return impl_->feeder.feed(gif.height_px, gif.width_px, sink, [&](int y, const RowFeeder::Planes& to) -> Status {
    const bool is_inside = y >= gif.top && y < gif.top + gif.frame_height;
    if (!is_inside || frame_width < static_cast<std::size_t>(gif.width_px)) {
      for (std::size_t c = 0; c < 3; ++c) std::fill_n(to[c], gif.width_px, around[c]);
    }
    if (!is_inside) return {};
    const std::uint8_t* row = frame;
    if (gif.is_interlaced) {
      row += static_cast<std::size_t>(y - gif.top) * frame_width;
    } else {
      STOKER_CHECKED(impl_->lzw.read(frame, frame_width));
    }
    for (std::size_t x = 0; x < frame_width; ++x) {
      const auto& colour = gif.colours[row[x]];
      for (std::size_t c = 0; c < 3; ++c) to[c][static_cast<std::size_t>(gif.left) + x] = colour[c];
    }
    return {};
  });
}

}  // namespace stoker

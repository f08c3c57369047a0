#include "media/bmp/bmp.h"

#include <fmt/format.h>

#include <algorithm>

#include "media/bmp/bmp_header.h"
#include "media/row_feeder.h"

namespace stoker {
namespace {

using Planes = RowFeeder::Planes;
using Palette = std::array<std::array<std::uint8_t, 3>, 256>;

int byte_at(std::span<const std::byte> file, std::size_t at) { return std::to_integer<int>(file[at]); }

Palette read_palette(std::span<const std::byte> file, const BmpHeader& header) {
  Palette palette{};
  bool is_grey = true;
  const std::size_t n = std::min(header.n_colours, palette.size());
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t at = header.palette_begin + i * header.palette_step;
    if (at + 3 > file.size()) break;
    for (std::size_t c = 0; c < 3; ++c) {
      palette[i][c] = std::to_integer<std::uint8_t>(file[at + 2 - c]);
      is_grey = is_grey && palette[i][c] == i;
    }
  }
  // What a palette lacks is black in Pillow, except that it takes the indices for levels where the palette is such a
  // ramp.
  for (std::size_t i = n; i < palette.size() && is_grey; ++i) palette[i].fill(static_cast<std::uint8_t>(i));
  return palette;
}

/// Unpacks runs into colour indices, (height, width), in the order of the file. It does what Pillow's decoder does,
/// which ends a row at an end-of-line code only and refuses a picture that stops before its last pixel.
class RunLengths {
 public:
  RunLengths(std::span<const std::byte> file, std::size_t at, bool is_4_bits, std::size_t width, std::size_t n,
             std::uint8_t* to)
      : file_(file), at_(at), is_4_bits_(is_4_bits), width_(width), n_(n), to_(to) {}

  Status unpack() {
    while (done_ < n_) {
      if (at_ + 2 > file_.size()) return ended();
      const auto count = static_cast<std::size_t>(byte_at(file_, at_));
      const int value = byte_at(file_, at_ + 1);
      at_ += 2;
      if (count > 0) {
        put_run(count, value);
      } else if (value == 0) {
        put_zeros(done_ % width_ == 0 ? 0 : width_ - done_ % width_);
        x_ = 0;
      } else if (value == 1) {
        return {Reason::kImgCorrupt, fmt::format("BMP whose runs end after {} of {} pixels", done_, n_)};
      } else if (value == 2) {
        if (at_ + 2 > file_.size()) return ended();
        put_zeros(static_cast<std::size_t>(byte_at(file_, at_)) +
                  static_cast<std::size_t>(byte_at(file_, at_ + 1)) * width_);
        at_ += 2;
        x_ = done_ % width_;
      } else {
        STOKER_CHECKED(put_literals(static_cast<std::size_t>(value)));
      }
    }
    return {};
  }

 private:
  Status ended() const { return {Reason::kImgTruncated, fmt::format("BMP ends after {} of {} pixels", done_, n_)}; }

  void put_zeros(std::size_t count) {
    count = std::min(count, n_ - done_);
    std::fill_n(to_ + done_, count, std::uint8_t{0});
    done_ += count;
  }

  void put_run(std::size_t count, int value) {
    count = std::min(count, width_ - std::min(width_, x_));
    x_ += count;
    count = std::min(count, n_ - done_);
    for (std::size_t i = 0; i < count; ++i) {
      to_[done_ + i] = static_cast<std::uint8_t>(!is_4_bits_ ? value : i % 2 == 0 ? value >> 4 : value & 15);
    }
    done_ += count;
  }

  Status put_literals(std::size_t count) {
    x_ += count;
    count = std::min(count, n_ - done_);
    const std::size_t n_bytes = is_4_bits_ ? (count + 1) / 2 : count;
    if (n_bytes > file_.size() - at_) return ended();
    for (std::size_t i = 0; i < count; ++i) {
      const int byte = byte_at(file_, at_ + (is_4_bits_ ? i / 2 : i));
      to_[done_ + i] = static_cast<std::uint8_t>(!is_4_bits_ ? byte : i % 2 == 0 ? byte >> 4 : byte & 15);
    }
    done_ += count;
    at_ += n_bytes;
    at_ += at_ % 2;  // literals end at an even place in the file
    return {};
  }

  std::span<const std::byte> file_;
  std::size_t at_;
  bool is_4_bits_;
  std::size_t width_;
  std::size_t n_;
  std::uint8_t* to_;
  std::size_t done_ = 0;
  std::size_t x_ = 0;
};

void write_indexed(const std::byte* row, int bits, int width, const Palette& palette, const Planes& to) {
  for (int x = 0; x < width; ++x) {
    const std::int64_t bit = std::int64_t{x} * bits;
    const int index = std::to_integer<int>(row[bit / 8]) >> (8 - bits - static_cast<int>(bit % 8)) & ((1 << bits) - 1);
    for (std::size_t c = 0; c < 3; ++c) to[c][x] = palette[static_cast<std::size_t>(index)][c];
  }
}

void write_16_bits(const std::byte* row, bool has_6_green, int width, const Planes& to) {
  for (int x = 0; x < width; ++x) {
    const int v = std::to_integer<int>(row[2 * x]) | std::to_integer<int>(row[2 * x + 1]) << 8;
    to[2][x] = static_cast<std::uint8_t>((v & 31) * 255 / 31);
    to[1][x] = static_cast<std::uint8_t>(has_6_green ? (v >> 5 & 63) * 255 / 63 : (v >> 5 & 31) * 255 / 31);
    to[0][x] = static_cast<std::uint8_t>((v >> (has_6_green ? 11 : 10) & 31) * 255 / 31);
  }
}

void write_bytes(const std::byte* row, const BmpHeader& header, bool blends, const Planes& to) {
  const int step = header.bits / 8;
  for (int x = 0; x < header.width_px; ++x, row += step) {
    const int alpha = blends ? std::to_integer<int>(row[header.channels[3]]) : 255;
    for (std::size_t c = 0; c < 3; ++c) to[c][x] = on_white(std::to_integer<int>(row[header.channels[c]]), alpha);
  }
}

}  // namespace

struct BmpDecoder::Impl {
  Scratch index_memory;  // (height, width) of a run-length coded picture
  RowFeeder feeder;
};

BmpDecoder::BmpDecoder() : impl_(std::make_unique<Impl>()) {}
BmpDecoder::~BmpDecoder() = default;

Status BmpDecoder::decode(std::span<const std::byte> file, const ImageInfo& info, const ImageOptions& options,
                          RowSink& sink, ImageNotes&) {
  STOKER_TRY(const auto found, read_bmp_header(file));
  if (!found || found->height_px != info.height_px || found->width_px != info.width_px) {
    return {Reason::kInternal, "BMP is not what its probe said"};
  }
  const BmpHeader& bmp = *found;
  const auto width = static_cast<std::size_t>(bmp.width_px);
  const auto height = static_cast<std::size_t>(bmp.height_px);
  const Palette palette = read_palette(file, bmp);
  const bool is_run_length = bmp.pixels == BmpPixels::kRle4 || bmp.pixels == BmpPixels::kRle8;
  const std::byte* rows = file.data() + std::min(bmp.pixels_begin, file.size());
  std::size_t stride = bmp.stride();
  int bits = bmp.bits;
  if (is_run_length) {
    auto* indices = impl_->index_memory.get<std::uint8_t>(width * height);
    const std::size_t begin = std::min(bmp.pixels_begin, file.size());
    STOKER_CHECKED(RunLengths(file, begin, bmp.pixels == BmpPixels::kRle4, width, width * height, indices).unpack());
    rows = reinterpret_cast<const std::byte*>(indices);
    stride = width;
    bits = 8;
  } else if (bmp.pixels_begin + stride * (height - 1) + bmp.row_bytes() > file.size()) {
    return {Reason::kImgTruncated, fmt::format("BMP ends at byte {}, its pixels at {}", file.size(),
                                               bmp.pixels_begin + stride * (height - 1) + bmp.row_bytes())};
  }
  const bool blends = bmp.has_alpha && is_blended(options.alpha, true);
  return impl_->feeder.feed(bmp.height_px, bmp.width_px, sink, [&](int y, const Planes& to) -> Status {
    const int stored = bmp.is_top_down ? y : bmp.height_px - 1 - y;
    const std::byte* row = rows + stride * static_cast<std::size_t>(stored);
    switch (bmp.pixels) {
      case BmpPixels::kPalette:
      case BmpPixels::kRle4:
      case BmpPixels::kRle8:
        write_indexed(row, bits, bmp.width_px, palette, to);
        break;
      case BmpPixels::kRgb555:
      case BmpPixels::kRgb565:
        write_16_bits(row, bmp.pixels == BmpPixels::kRgb565, bmp.width_px, to);
        break;
      case BmpPixels::kBytes:
        write_bytes(row, bmp, blends, to);
        break;
    }
    return {};
  });
}

}  // namespace stoker

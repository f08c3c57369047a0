#include "media/png/png.h"

#include <fmt/format.h>
#include <spng.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "media/colour_kernels.h"
#include "media/png/png_header.h"
#include "media/scratch.h"

namespace stoker {
namespace {

struct FreeContext {
  void operator()(spng_ctx* context) const { spng_ctx_free(context); }
};

bool is_wanted(std::string_view type) {
  return type == "IHDR" || type == "PLTE" || type == "tRNS" || type == "IDAT" || type == "IEND";
}

/// Feeds the codec the chunks that decide pixels and none of the others. The file's chunks were walked before.
class WantedChunks {
 public:
  explicit WantedChunks(std::span<const std::byte> file) : file_(file) {}

  int read(void* to, std::size_t n_bytes) {
    auto* out = static_cast<std::byte*>(to);
    while (n_bytes > 0) {
      if (at_ == end_ && !advance()) return SPNG_IO_EOF;
      const std::size_t n = std::min(n_bytes, end_ - at_);
      std::memcpy(out, file_.data() + at_, n);
      at_ += n;
      out += n;
      n_bytes -= n;
    }
    return 0;
  }

 private:
  bool advance() {
    for (;;) {
      const auto chunk = png_chunk_at(file_, at_);
      if (!chunk.ok() || !*chunk || (*chunk)->end() > file_.size()) return false;
      end_ = (*chunk)->end();
      if (is_wanted((*chunk)->type)) return true;
      at_ = end_;
    }
  }

  std::span<const std::byte> file_;
  std::size_t at_ = 0;
  std::size_t end_ = 8;  // the signature
};

/// Whether all chunks up to IEND are there; says if tRNS is among them.
Result<bool> find_transparency(std::span<const std::byte> file) {
  bool has_transparency = false;
  for (std::size_t at = 8;;) {
    STOKER_TRY(const auto chunk, png_chunk_at(file, at));
    if (!chunk || chunk->end() > file.size()) {
      return Status(Reason::kImgTruncated, fmt::format("PNG ends at byte {} inside chunk {}", file.size(),
                                                       chunk ? chunk->type : std::string_view("header")));
    }
    if (chunk->type == "IEND") return has_transparency;
    if (chunk->type == "tRNS") has_transparency = true;
    at = chunk->end();
  }
}

std::uint8_t on_white(int c, int a) {
  const int t = 255 * (255 - a) + c * a + 128;
  return static_cast<std::uint8_t>(((t >> 8) + t) >> 8);
}

using Planes = std::array<std::uint8_t*, 3>;

void narrow_rgba8(const std::uint8_t* row, int width, AlphaRule rule, const Planes& to) {
  for (int x = 0; x < width; ++x) {
    const std::uint8_t* px = row + static_cast<std::ptrdiff_t>(x) * 4;
    for (std::size_t c = 0; c < 3; ++c) to[c][x] = rule == AlphaRule::kWhite ? on_white(px[c], px[3]) : px[c];
  }
}

void narrow_rgba16(const std::uint8_t* row, int width, bool is_plain_grey, const ImageOptions& options,
                   const Planes& to) {
  const auto narrow = [&](int v) {
    if (options.grey16 == Grey16Rule::kScale) return (v * 255 + 32767) / 65535;
    return is_plain_grey ? std::min(v, 255) : v >> 8;
  };
  for (int x = 0; x < width; ++x) {
    std::array<std::uint16_t, 4> px{};
    std::memcpy(px.data(), row + static_cast<std::ptrdiff_t>(x) * 8, 8);
    const int alpha = options.grey16 == Grey16Rule::kScale ? narrow(px[3]) : px[3] >> 8;
    for (std::size_t c = 0; c < 3; ++c) {
      const int value = narrow(px[c]);
      to[c][x] = options.alpha == AlphaRule::kWhite ? on_white(value, alpha) : static_cast<std::uint8_t>(value);
    }
  }
}

Status failure(int code) {
  const std::string text = fmt::format("PNG: {}", spng_strerror(code));
  if (code == SPNG_EMEM) return {Reason::kInternal, text};
  const bool is_short = code == SPNG_IO_EOF || code == SPNG_EIDAT_TOO_SHORT || code == SPNG_EOF;
  return {is_short ? Reason::kImgTruncated : Reason::kImgCorrupt, text};
}

}  // namespace

struct PngDecoder::Impl {
  Scratch rows_memory;    // (2, bytes of a row), or the whole picture when interlaced
  Scratch planes_memory;  // (2, 3, stride)
};

PngDecoder::PngDecoder() : impl_(std::make_unique<Impl>()) {}
PngDecoder::~PngDecoder() = default;
PngDecoder::PngDecoder(PngDecoder&&) noexcept = default;
PngDecoder& PngDecoder::operator=(PngDecoder&&) noexcept = default;

Status PngDecoder::decode(std::span<const std::byte> file, const ImageInfo& info, const ImageOptions& options,
                          RowSink& sink) {
  STOKER_TRY(const PngHeader header, read_png_header(file));
  STOKER_TRY(const bool has_transparency, find_transparency(file));
  if (header.height_px != info.height_px || header.width_px != info.width_px) {
    return {Reason::kInternal, fmt::format("PNG is {}x{}, its probe said {}x{}", header.width_px, header.height_px,
                                           info.width_px, info.height_px)};
  }
  const PngSamples samples = png_samples(header, has_transparency);
  const int format = samples == PngSamples::kGrey8   ? SPNG_FMT_G8
                     : samples == PngSamples::kRgb8  ? SPNG_FMT_RGB8
                     : samples == PngSamples::kRgba8 ? SPNG_FMT_RGBA8
                                                     : SPNG_FMT_RGBA16;
  const int flags = has_transparency && options.alpha == AlphaRule::kWhite ? SPNG_DECODE_TRNS : 0;

  WantedChunks chunks(file);
  const std::unique_ptr<spng_ctx, FreeContext> context(spng_ctx_new(0));
  if (!context) return {Reason::kInternal, "PNG: no memory for the codec"};
  spng_set_crc_action(context.get(), SPNG_CRC_ERROR, SPNG_CRC_USE);
  int code = spng_set_png_stream(
      context.get(),
      [](spng_ctx*, void* user, void* to, std::size_t n) { return static_cast<WantedChunks*>(user)->read(to, n); },
      &chunks);
  if (code != 0) return failure(code);

  const auto width = static_cast<std::size_t>(header.width_px);
  const std::size_t row_bytes = width * bytes_per_pixel(samples);
  const auto height = static_cast<std::size_t>(header.height_px);
  std::uint8_t* rows = nullptr;
  if (header.is_interlaced) {
    rows = impl_->rows_memory.get<std::uint8_t>(row_bytes * height + 4 * kRowSlackBytes);
    code = spng_decode_image(context.get(), rows, row_bytes * height, format, flags);
  } else {
    rows = impl_->rows_memory.get<std::uint8_t>(2 * row_bytes + 4 * kRowSlackBytes);
    code = spng_decode_image(context.get(), nullptr, 0, format, flags | SPNG_DECODE_PROGRESSIVE);
  }
  if (code != 0) return failure(code);

  const std::size_t stride = round_up(width, 64) + kRowSlackBytes;
  auto* planes = impl_->planes_memory.get<std::uint8_t>(6 * stride);
  for (int y = 0; y < header.height_px; y += 2) {
    const int n = std::min(2, header.height_px - y);
    RowPair pair{};
    for (int i = 0; i < 2; ++i) {
      std::uint8_t* plane = planes + static_cast<std::size_t>(std::min(i, n - 1)) * 3 * stride;
      const Planes to = {plane, plane + stride, plane + 2 * stride};
      for (std::size_t c = 0; c < 3; ++c) pair.rows[static_cast<std::size_t>(i)][c] = to[c];
      if (i >= n) break;
      std::uint8_t* row = rows + row_bytes * static_cast<std::size_t>(header.is_interlaced ? y + i : i);
      if (!header.is_interlaced) {
        code = spng_decode_row(context.get(), row, row_bytes);
        if (code != 0 && code != SPNG_EOI) return failure(code);
      }
      switch (samples) {
        case PngSamples::kGrey8:
          for (std::size_t c = 0; c < 3; ++c) std::memcpy(to[c], row, width);
          break;
        case PngSamples::kRgb8:
          split_rgb(row, header.width_px, to);
          break;
        case PngSamples::kRgba8:
          narrow_rgba8(row, header.width_px, options.alpha, to);
          break;
        case PngSamples::kRgba16:
          narrow_rgba16(row, header.width_px, header.colour_type == 0, options, to);
          break;
      }
    }
    STOKER_CHECKED(sink.take(y, pair));
  }
  return {};
}

}  // namespace stoker

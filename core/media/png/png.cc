#include "media/png/png.h"

#include <fmt/format.h>
#include <spng.h>

#include <algorithm>
#include <cstring>

#include "media/colour_kernels.h"
#include "media/png/png_header.h"
#include "media/row_feeder.h"
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

/// Walks all chunks up to IEND. @return IMG_TRUNCATED if they are not all there, unless that is tolerated.
Result<bool> find_transparency(std::span<const std::byte> file, bool is_truncated_used, ImageNotes& notes) {
  bool has_transparency = false;
  for (std::size_t at = 8;;) {
    STOKER_TRY(const auto chunk, png_chunk_at(file, at));
    if (!chunk || chunk->end() > file.size()) {
      if (is_truncated_used) {
        notes.add(ImageNote::kTruncated);
        return has_transparency;
      }
      return Status(Reason::kImgTruncated, fmt::format("PNG ends at byte {} inside chunk {}", file.size(),
                                                       chunk ? chunk->type : std::string_view("header")));
    }
    if (!is_wanted(chunk->type) && !is_png_chunk_sound(file, *chunk)) notes.add(ImageNote::kSideChunkDamaged);
    if (chunk->type == "tRNS") has_transparency = true;
    at = chunk->end();
    if (chunk->type == "IEND") break;
    if (at == file.size() && is_truncated_used) {
      notes.add(ImageNote::kTruncated);
      return has_transparency;
    }
  }
  return has_transparency;
}

using Planes = RowFeeder::Planes;

void narrow_rgba16(const std::uint8_t* row, int width, bool is_plain_grey, bool blends, const ImageOptions& options,
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
      to[c][x] = blends ? on_white(value, alpha) : static_cast<std::uint8_t>(value);
    }
  }
}

bool is_end(int code) { return code == SPNG_IO_EOF || code == SPNG_EIDAT_TOO_SHORT || code == SPNG_EOF; }

Status failure(int code) {
  const std::string text = fmt::format("PNG: {}", spng_strerror(code));
  if (code == SPNG_EMEM) return {Reason::kInternal, text};
  return {is_end(code) ? Reason::kImgTruncated : Reason::kImgCorrupt, text};
}

}  // namespace

struct PngDecoder::Impl {
  Scratch rows_memory;  // one row, or the whole picture when interlaced
  RowFeeder feeder;
};

PngDecoder::PngDecoder() : impl_(std::make_unique<Impl>()) {}
PngDecoder::~PngDecoder() = default;
PngDecoder::PngDecoder(PngDecoder&&) noexcept = default;
PngDecoder& PngDecoder::operator=(PngDecoder&&) noexcept = default;

Status PngDecoder::decode(std::span<const std::byte> file, const ImageInfo& info, const ImageOptions& options,
                          RowSink& sink, ImageNotes& notes) {
  STOKER_TRY(const PngHeader header, read_png_header(file));
  ImageNotes found;
  STOKER_TRY(const bool has_transparency, find_transparency(file, options.is_truncated_used, found));
  notes.add(found);
  if (header.height_px != info.height_px || header.width_px != info.width_px) {
    return {Reason::kInternal, fmt::format("PNG is {}x{}, its probe said {}x{}", header.width_px, header.height_px,
                                           info.width_px, info.height_px)};
  }
  const PngSamples samples = png_samples(header, has_transparency);
  const int format = samples == PngSamples::kGrey8   ? SPNG_FMT_G8
                     : samples == PngSamples::kRgb8  ? SPNG_FMT_RGB8
                     : samples == PngSamples::kRgba8 ? SPNG_FMT_RGBA8
                                                     : SPNG_FMT_RGBA16;
  // Pillow opens 16-bit grey with alpha as RGBA, the 8-bit kind as LA.
  const bool is_rgba = header.colour_type == 6 || (header.has_alpha() && header.depth == 16);
  const bool blends = is_blended(options.alpha, is_rgba);
  const int flags = has_transparency && blends ? SPNG_DECODE_TRNS : 0;

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
  // What a truncated picture lacks is black, as in Pillow.
  const bool is_short = found.has(ImageNote::kTruncated);
  bool has_ended = false;
  std::uint8_t* rows = nullptr;
  if (header.is_interlaced) {
    rows = impl_->rows_memory.get<std::uint8_t>(row_bytes * height + 4 * kRowSlackBytes);
    if (is_short) std::memset(rows, 0, row_bytes * height);
    code = spng_decode_image(context.get(), rows, row_bytes * height, format, flags);
    if (is_short && is_end(code)) code = 0;
  } else {
    rows = impl_->rows_memory.get<std::uint8_t>(row_bytes + 4 * kRowSlackBytes);
    code = spng_decode_image(context.get(), nullptr, 0, format, flags | SPNG_DECODE_PROGRESSIVE);
    if (is_short && is_end(code)) has_ended = true, code = 0;
  }
  if (code != 0) return failure(code);

  return impl_->feeder.feed(header.height_px, header.width_px, sink, [&](int y, const Planes& to) -> Status {
    std::uint8_t* row = rows + (header.is_interlaced ? row_bytes * static_cast<std::size_t>(y) : 0);
    if (!header.is_interlaced && !has_ended) {
      const int read = spng_decode_row(context.get(), row, row_bytes);
      has_ended = is_short && is_end(read);
      if (read != 0 && read != SPNG_EOI && !has_ended) return failure(read);
    }
    if (has_ended) {
      for (std::size_t c = 0; c < 3; ++c) std::memset(to[c], 0, width);
      return {};
    }
    switch (samples) {
      case PngSamples::kGrey8:
        for (std::size_t c = 0; c < 3; ++c) std::memcpy(to[c], row, width);
        break;
      case PngSamples::kRgb8:
        split_rgb(row, header.width_px, to);
        break;
      case PngSamples::kRgba8:
        split_rgba(row, header.width_px, blends, to);
        break;
      case PngSamples::kRgba16:
        narrow_rgba16(row, header.width_px, header.colour_type == 0, blends, options, to);
        break;
    }
    return {};
  });
}

}  // namespace stoker

#include "media/jpeg/jpeg.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "media/colour_kernels.h"
#include "media/jpeg/jpeg_codec.h"
#include "media/jpeg/jpeg_header.h"
#include "media/scratch.h"

namespace stoker {
namespace {

constexpr int kDctRows = 8;

/// The layout that our kernels finish, or nothing: then the library's own upsampling and colour conversion are used.
/// Narrow pictures are the library's too, because it replicates chroma there instead of filtering.
bool find_layout(const jpeg_decompress_struct& d, ChromaLayout& layout) {
  if (d.num_components != 3 || d.jpeg_color_space != JCS_YCbCr) return false;
  const jpeg_component_info* c = d.comp_info;
  for (int i = 1; i < 3; ++i) {
    if (c[i].h_samp_factor != 1 || c[i].v_samp_factor != 1) return false;
  }
  const int h = c[0].h_samp_factor;
  const int v = c[0].v_samp_factor;
  if (h == 1 && v == 1) {
    layout = ChromaLayout::kFull;
    return true;
  }
  if (h != 2 || v > 2 || (d.image_width + 1) / 2 <= 2) return false;
  layout = v == 2 ? ChromaLayout::kHalfBoth : ChromaLayout::kHalfWidth;
  return true;
}

/// a * b / 255, rounded as Pillow does it.
int mul255(int a, int b) {
  const int t = a * b + 128;
  return ((t >> 8) + t) >> 8;
}

}  // namespace

struct JpegDecoder::Impl {
  JpegCodec codec;
  Scratch raw_memory;  // (2, rows of one iMCU over all components): what the inverse DCT writes; the previous one is
                       // kept for its neighbours
  Scratch rgb_memory;  // (2, 3, stride)
  Scratch sum_memory;
  Scratch scanline_memory;
  std::size_t rgb_stride = 0;

  std::array<std::uint8_t*, 3> rgb_row(int i) {
    auto* base = rgb_memory.get<std::uint8_t>(6 * rgb_stride) + static_cast<std::size_t>(i) * 3 * rgb_stride;
    return {base, base + rgb_stride, base + 2 * rgb_stride};
  }
  RowPair rgb_pair(bool is_single) {
    RowPair pair{};
    for (int i = 0; i < 2; ++i) {
      const auto row = rgb_row(is_single ? 0 : i);
      for (std::size_t c = 0; c < 3; ++c) pair.rows[static_cast<std::size_t>(i)][c] = row[c];
    }
    return pair;
  }

  Status start(const ImageInfo& info, const ImageLimits& limits, ChromaLayout& layout, bool& is_raw);
  Status raw_rows(ChromaLayout layout, RowSink& sink);
  Status scanlines(RowSink& sink);
};

JpegDecoder::JpegDecoder() : impl_(std::make_unique<Impl>()) {}
JpegDecoder::~JpegDecoder() = default;
JpegDecoder::JpegDecoder(JpegDecoder&&) noexcept = default;
JpegDecoder& JpegDecoder::operator=(JpegDecoder&&) noexcept = default;

Status JpegDecoder::decode(std::span<const std::byte> file, const ImageInfo& info, const ImageOptions& options,
                           RowSink& sink, ImageNotes& notes) {
  Impl& impl = *impl_;
  const JpegTolerance tolerance{options.is_end_optional, options.is_truncated_used};
  STOKER_CHECKED(impl.codec.open(file, options.limits.max_scans, tolerance));
  ChromaLayout layout = ChromaLayout::kFull;
  bool is_raw = false;
  Status status = impl.start(info, options.limits, layout, is_raw);
  if (status.ok()) status = is_raw ? impl.raw_rows(layout, sink) : impl.scanlines(sink);
  if (status.ok()) status = impl.codec.check_scans();  // before its tables are freed
  if (status.ok()) status = impl.codec.guarded([](jpeg_decompress_struct& d) { jpeg_finish_decompress(&d); });
  if (status.ok()) impl.codec.add_notes(notes);
  impl.codec.abort();
  return status;
}

Status JpegDecoder::Impl::start(const ImageInfo& info, const ImageLimits& limits, ChromaLayout& layout, bool& is_raw) {
  STOKER_CHECKED(codec.guarded([](jpeg_decompress_struct& d) { jpeg_read_header(&d, TRUE); }));
  jpeg_decompress_struct& d = codec.raw();
  if (static_cast<int>(d.image_width) != info.width_px || static_cast<int>(d.image_height) != info.height_px) {
    return {Reason::kInternal, fmt::format("JPEG is {}x{}, its probe said {}x{}", d.image_width, d.image_height,
                                           info.width_px, info.height_px)};
  }
  if (info.interlaced) {
    // Empty scans cost nothing in bytes and a pass over the picture each, so they are counted before the first is
    // decoded.
    if (const int n = count_scans(codec.rest(), limits.max_scans); n > limits.max_scans) {
      return {Reason::kImgTooManyScans, fmt::format("JPEG with more than {} scans", limits.max_scans)};
    }
  }
  is_raw = find_layout(d, layout);
  d.raw_data_out = is_raw ? TRUE : FALSE;
  if (!is_raw) {
    d.out_color_space = d.num_components == 1 ? JCS_GRAYSCALE : d.num_components == 4 ? JCS_CMYK : JCS_RGB;
  }
  rgb_stride = round_up(d.image_width, 64) + kRowSlackBytes + 64;
  codec.begin_pixels();
  return codec.guarded([](jpeg_decompress_struct& s) { jpeg_start_decompress(&s); });
}

Status JpegDecoder::Impl::raw_rows(ChromaLayout layout, RowSink& sink) {
  jpeg_decompress_struct& d = codec.raw();
  const bool is_half_height = layout == ChromaLayout::kHalfBoth;
  const int rows = is_half_height ? 2 * kDctRows : kDctRows;  // luma rows of one iMCU
  const int height = static_cast<int>(d.image_height);
  const int chroma_height = is_half_height ? (height + 1) / 2 : height;
  const int chroma_width =
      layout == ChromaLayout::kFull ? static_cast<int>(d.image_width) : static_cast<int>((d.image_width + 1) / 2);
  const std::size_t luma_stride = d.comp_info[0].width_in_blocks * std::size_t{8} + kRowSlackBytes;
  const std::size_t chroma_stride = d.comp_info[1].width_in_blocks * std::size_t{8} + kRowSlackBytes;
  const std::size_t set_bytes =
      round_up(static_cast<std::size_t>(rows) * luma_stride + 2 * kDctRows * chroma_stride, 64);
  auto* raw = raw_memory.get<std::uint8_t>(2 * set_bytes + kRowSlackBytes);
  auto* sums = sum_memory.get<std::int16_t>(2 * static_cast<std::size_t>(chroma_width) + 256);

  const auto luma = [&](int y) {
    return raw + static_cast<std::size_t>(y / rows % 2) * set_bytes + static_cast<std::size_t>(y % rows) * luma_stride;
  };
  const auto chroma = [&](int y, int c) {
    return raw + static_cast<std::size_t>(y / kDctRows % 2) * set_bytes + static_cast<std::size_t>(rows) * luma_stride +
           (static_cast<std::size_t>(c) * kDctRows + static_cast<std::size_t>(y % kDctRows)) * chroma_stride;
  };
  const auto convert = [&](int y, const std::array<std::uint8_t*, 3>& to) {
    const int near = is_half_height ? y / 2 : y;
    const int far = std::clamp(y % 2 == 0 ? near - 1 : near + 1, 0, chroma_height - 1);
    ycc_to_rgb(layout, {luma(y), {chroma(near, 0), chroma(near, 1)}, {chroma(far, 0), chroma(far, 1)}}, chroma_width,
               sums, to);
  };

  int done = 0;  // rows given to the sink
  for (int first = 0; first < height; first += rows) {
    std::array<std::array<JSAMPROW, 2 * kDctRows>, 3> pointers{};
    for (int i = 0; i < rows; ++i) pointers[0][static_cast<std::size_t>(i)] = luma(first + i);
    for (int i = 0; i < kDctRows; ++i) {
      for (int c = 0; c < 2; ++c)
        pointers[static_cast<std::size_t>(c) + 1][static_cast<std::size_t>(i)] = chroma(first / rows * kDctRows + i, c);
    }
    std::array<JSAMPARRAY, 3> planes = {pointers[0].data(), pointers[1].data(), pointers[2].data()};
    JSAMPIMAGE image = planes.data();
    const auto n_lines = static_cast<JDIMENSION>(rows);
    STOKER_CHECKED(
        codec.guarded([image, n_lines](jpeg_decompress_struct& s) { jpeg_read_raw_data(&s, image, n_lines); }));

    // The last luma row of an iMCU needs the chroma below it, so its pair waits for the next one.
    const bool is_last = first + rows >= height;
    const int ready = is_last ? height : first + rows - (is_half_height ? 2 : 0);
    for (; done < ready; done += 2) {
      const bool is_single = done + 1 == height;
      convert(done, rgb_row(0));
      if (!is_single) convert(done + 1, rgb_row(1));
      STOKER_CHECKED(sink.take(done, rgb_pair(is_single)));
    }
  }
  return {};
}

Status JpegDecoder::Impl::scanlines(RowSink& sink) {
  jpeg_decompress_struct& d = codec.raw();
  const int height = static_cast<int>(d.image_height);
  const int width = static_cast<int>(d.image_width);
  const auto n_channels = static_cast<std::size_t>(d.out_color_components);
  // Rows lie at 16 modulo 32: the library's AVX2 colour code would write aligned rows past the cache.
  const std::size_t stride = round_up(static_cast<std::size_t>(width) * n_channels + 4 * kRowSlackBytes, 64);
  std::uint8_t* rows = scanline_memory.get<std::uint8_t>(2 * stride + 16) + 16;
  for (int y = 0; y < height; y += 2) {
    const int n = std::min(2, height - y);
    for (int i = 0; i < n; ++i) {
      JSAMPROW row = rows + static_cast<std::size_t>(i) * stride;
      STOKER_CHECKED(codec.guarded([row](jpeg_decompress_struct& s) {
        JSAMPROW one = row;
        jpeg_read_scanlines(&s, &one, 1);
      }));
      const auto to = rgb_row(i);
      if (n_channels == 3) {
        split_rgb(row, width, to);
      } else if (n_channels == 1) {
        for (std::size_t c = 0; c < 3; ++c) std::copy_n(row, width, to[c]);
      } else {
        // Ink amounts are stored inverted (Adobe), so `row` holds 255 minus ink.
        for (int x = 0; x < width; ++x) {
          const std::uint8_t* ink = row + static_cast<std::ptrdiff_t>(x) * 4;
          const int white = ink[3];
          for (std::size_t c = 0; c < 3; ++c)
            to[c][x] = static_cast<std::uint8_t>(std::clamp(white - mul255(255 - ink[c], white), 0, 255));
        }
      }
    }
    STOKER_CHECKED(sink.take(y, rgb_pair(n == 1)));
  }
  return {};
}

}  // namespace stoker

#include "media/webp/webp.h"

#include <fmt/format.h>
#include <webp/decode.h>
#include <webp/demux.h>

#include <cstring>

#include "media/row_feeder.h"

namespace stoker {
namespace {

struct FreeDemuxer {
  void operator()(WebPDemuxer* demuxer) const { WebPDemuxDelete(demuxer); }
};

std::uint64_t riff_end(std::span<const std::byte> file) {
  std::uint64_t n = 0;
  for (std::size_t i = 0; i < 4; ++i) n |= std::to_integer<std::uint64_t>(file[4 + i]) << 8 * i;
  return 8 + n;
}

Status failure(VP8StatusCode code) {
  switch (code) {
    case VP8_STATUS_OUT_OF_MEMORY:
      return {Reason::kInternal, "WebP: no memory for the codec"};
    case VP8_STATUS_UNSUPPORTED_FEATURE:
      return {Reason::kImgUnsupported, "WebP with a feature that the codec does not know"};
    case VP8_STATUS_NOT_ENOUGH_DATA:
    case VP8_STATUS_SUSPENDED:
      return {Reason::kImgTruncated, "WebP whose pixels end early"};
    default:
      return {Reason::kImgCorrupt,
              fmt::format("WebP: the codec refuses its pixels (status {})", static_cast<int>(code))};
  }
}

}  // namespace

struct WebpDecoder::Impl {
  Scratch canvas_memory;  // (height, width, 4)
  RowFeeder feeder;
};

WebpDecoder::WebpDecoder() : impl_(std::make_unique<Impl>()) {}
WebpDecoder::~WebpDecoder() = default;

Status WebpDecoder::decode(std::span<const std::byte> file, const ImageInfo& info, const ImageOptions& options,
                           RowSink& sink, ImageNotes& notes) {
  const std::uint64_t end = riff_end(file);
  if (end > file.size()) {
    return {Reason::kImgTruncated, fmt::format("WebP ends at byte {} of {}", file.size(), end)};
  }
  if (end + end % 2 < file.size()) notes.add(ImageNote::kBytesAfterEnd);
  const WebPData data{reinterpret_cast<const std::uint8_t*>(file.data()), file.size()};
  const std::unique_ptr<WebPDemuxer, FreeDemuxer> demuxer(WebPDemux(&data));
  if (!demuxer) return {Reason::kImgCorrupt, "WebP whose chunks do not fit together"};
  const auto height = static_cast<std::size_t>(info.height_px);
  const auto width = static_cast<std::size_t>(info.width_px);
  if (WebPDemuxGetI(demuxer.get(), WEBP_FF_CANVAS_HEIGHT) != height ||
      WebPDemuxGetI(demuxer.get(), WEBP_FF_CANVAS_WIDTH) != width) {
    return {Reason::kImgCorrupt, "WebP whose picture has another size than its header says"};
  }
  WebPIterator frame;
  if (WebPDemuxGetFrame(demuxer.get(), 1, &frame) == 0) return {Reason::kImgCorrupt, "WebP without a frame"};
  const std::unique_ptr<WebPIterator, void (*)(WebPIterator*)> release(&frame, WebPDemuxReleaseIterator);
  const bool fits = frame.x_offset >= 0 && frame.y_offset >= 0 && frame.width > 0 && frame.height > 0 &&
                    frame.x_offset + frame.width <= info.width_px && frame.y_offset + frame.height <= info.height_px;
  if (!fits) return {Reason::kImgCorrupt, "WebP frame that lies outside its canvas"};

  auto* canvas = impl_->canvas_memory.get<std::uint8_t>(height * width * 4);
  const bool is_whole = frame.width == info.width_px && frame.height == info.height_px;
  if (!is_whole) std::memset(canvas, 0, height * width * 4);
  WebPDecoderConfig config;
  if (WebPInitDecoderConfig(&config) == 0) return {Reason::kInternal, "WebP: another version of the codec"};
  const std::size_t at =
      (static_cast<std::size_t>(frame.y_offset) * width + static_cast<std::size_t>(frame.x_offset)) * 4;
  config.output.colorspace = MODE_RGBA;
  config.output.is_external_memory = 1;
  config.output.u.RGBA.rgba = canvas + at;
  config.output.u.RGBA.stride = static_cast<int>(width * 4);
  config.output.u.RGBA.size = height * width * 4 - at;
  const VP8StatusCode code = WebPDecode(frame.fragment.bytes, frame.fragment.size, &config);
  if (code != VP8_STATUS_OK) return failure(code);

  // Pillow asks the whole file whether there is alpha, not the frame.
  WebPBitstreamFeatures features;
  const bool has_alpha = WebPGetFeatures(data.bytes, data.size, &features) == VP8_STATUS_OK && features.has_alpha != 0;
  const bool blends = has_alpha && is_blended(options.alpha, true);
  return impl_->feeder.feed(info.height_px, info.width_px, sink, [&](int y, const RowFeeder::Planes& to) -> Status {
    split_rgba(canvas + static_cast<std::size_t>(y) * width * 4, info.width_px, blends, to);
    return {};
  });
}

}  // namespace stoker

#include "media/formats.h"

#include <array>

#include "media/bmp/bmp.h"
#include "media/bmp/bmp_header.h"
#include "media/gif/gif.h"
#include "media/gif/gif_header.h"
#ifdef STOKER_HEIF
#include "media/heif/heif.h"
#include "media/heif/heif_header.h"
#endif
#include "media/jpeg/jpeg.h"
#include "media/jpeg/jpeg_header.h"
#include "media/png/png.h"
#include "media/png/png_header.h"
#include "media/tiff/tiff.h"
#include "media/tiff/tiff_header.h"
#include "media/webp/webp.h"
#include "media/webp/webp_header.h"

namespace stoker {
namespace {

using std::string_view_literals::operator""sv;

template <typename T>
std::unique_ptr<Decoder> make() {
  return std::make_unique<T>();
}

bool begins_as_jpeg(std::string_view bytes) { return bytes.starts_with("\xFF\xD8\xFF"sv); }
bool begins_as_png(std::string_view bytes) { return bytes.starts_with("\x89PNG\r\n\x1A\n"sv); }
bool begins_as_webp(std::string_view bytes) {
  return bytes.starts_with("RIFF"sv) && bytes.size() >= 12 && bytes.substr(8, 4) == "WEBP"sv;
}
bool begins_as_gif(std::string_view bytes) { return bytes.starts_with("GIF87a"sv) || bytes.starts_with("GIF89a"sv); }

constexpr auto kFormats = std::to_array<FormatEntry>({
    {ImageFormat::kJpeg, begins_as_jpeg, probe_jpeg, nullptr, make<JpegDecoder>},
    {ImageFormat::kPng, begins_as_png, probe_png, read_png_tail, make<PngDecoder>},
    {ImageFormat::kWebp, begins_as_webp, probe_webp, read_webp_tail, make<WebpDecoder>},
    {ImageFormat::kGif, begins_as_gif, probe_gif, nullptr, make<GifDecoder>},
    {ImageFormat::kBmp, begins_as_bmp, probe_bmp, nullptr, make<BmpDecoder>},
    {ImageFormat::kTiff, begins_as_tiff, probe_tiff, nullptr, make<TiffDecoder>},
#ifdef STOKER_HEIF
    {ImageFormat::kHeif, begins_as_heif, probe_heif, nullptr, make<HeifDecoder>},
#endif
});

constexpr std::array<std::string_view, kImageFormatCount> kNames = {"jpeg", "png",  "webp", "gif",
                                                                    "bmp",  "tiff", "heif"};

}  // namespace

std::string_view name_of(ImageFormat format) { return kNames[static_cast<std::size_t>(format)]; }

std::span<const FormatEntry> formats() { return kFormats; }

const FormatEntry* find_format(ImageFormat format) {
  for (const FormatEntry& entry : kFormats) {
    if (entry.format == format) return &entry;
  }
  return nullptr;
}

}  // namespace stoker

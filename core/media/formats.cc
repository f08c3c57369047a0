#include "media/formats.h"

#include <array>

#include "media/jpeg/jpeg.h"
#include "media/jpeg/jpeg_header.h"
#include "media/png/png.h"
#include "media/png/png_header.h"

namespace stoker {
namespace {

using std::string_view_literals::operator""sv;

template <typename T>
std::unique_ptr<Decoder> make() {
  return std::make_unique<T>();
}

constexpr auto kFormats = std::to_array<FormatEntry>({
    {ImageFormat::kJpeg, [](std::string_view b) { return b.starts_with("\xFF\xD8\xFF"sv); }, probe_jpeg, nullptr,
     make<JpegDecoder>},
    {ImageFormat::kPng, [](std::string_view b) { return b.starts_with("\x89PNG\r\n\x1A\n"sv); }, probe_png,
     read_png_tail, make<PngDecoder>},
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

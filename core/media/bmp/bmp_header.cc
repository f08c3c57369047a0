#include "media/bmp/bmp_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "media/limits.h"

namespace stoker {
namespace {

constexpr std::size_t kFileHeaderBytes = 14;
constexpr std::size_t kMostHeaderBytes = kFileHeaderBytes + 124 + 12;
constexpr std::uint32_t kCoreBytes = 12;
constexpr std::array<std::uint32_t, 7> kHeaderSizes = {kCoreBytes, 40, 52, 56, 64, 108, 124};
constexpr std::uint32_t kRaw = 0;
constexpr std::uint32_t kRle8 = 1;
constexpr std::uint32_t kRle4 = 2;
constexpr std::uint32_t kBitfields = 3;
constexpr std::uint8_t kNone = 255;

std::uint32_t number_at(std::span<const std::byte> file, std::size_t at, std::size_t n_bytes) {
  std::uint32_t value = 0;
  for (std::size_t i = n_bytes; i > 0; --i) value = value << 8 | std::to_integer<std::uint32_t>(file[at + i - 1]);
  return value;
}

using Masks = std::array<std::uint32_t, 4>;  // red, green, blue, alpha

/// Where each channel's byte lies in a pixel of 24 or 32 bits, for the masks that are taken.
struct ByteLayout {
  Masks masks;
  std::array<std::uint8_t, 4> channels;
};
constexpr std::array<ByteLayout, 8> kLayouts = {{
    {{0xFF0000, 0xFF00, 0xFF, 0}, {2, 1, 0, kNone}},
    {{0xFF000000, 0xFF0000, 0xFF00, 0}, {3, 2, 1, kNone}},
    {{0xFF000000, 0xFF00, 0xFF, 0}, {3, 1, 0, kNone}},
    {{0xFF000000, 0xFF0000, 0xFF00, 0xFF}, {3, 2, 1, 0}},
    {{0xFF, 0xFF00, 0xFF0000, 0xFF000000}, {0, 1, 2, 3}},
    {{0xFF0000, 0xFF00, 0xFF, 0xFF000000}, {2, 1, 0, 3}},
    {{0xFF000000, 0xFF00, 0xFF, 0xFF0000}, {3, 1, 0, 2}},
    {{0, 0, 0, 0}, {2, 1, 0, 3}},
}};

Status set_masks(BmpHeader& header, Masks masks) {
  if (header.bits == 16 || header.bits == 24) masks[3] = 0;
  if (header.bits == 16 && masks == Masks{0xF800, 0x7E0, 0x1F, 0}) {
    header.pixels = BmpPixels::kRgb565;
    return {};
  }
  if (header.bits == 16 && masks == Masks{0x7C00, 0x3E0, 0x1F, 0}) {
    header.pixels = BmpPixels::kRgb555;
    return {};
  }
  for (const ByteLayout& layout : kLayouts) {
    if (layout.masks != masks || header.bits < 24 || (header.bits == 24 && &layout != kLayouts.data())) continue;
    header.pixels = BmpPixels::kBytes;
    header.channels = layout.channels;
    header.has_alpha = layout.channels[3] != kNone;
    return {};
  }
  return {Reason::kImgUnsupported, fmt::format("BMP with {} bits and channel masks {:x} {:x} {:x} {:x} not supported",
                                               header.bits, masks[0], masks[1], masks[2], masks[3])};
}

Status set_layout(BmpHeader& header, std::uint32_t compression, const Masks& masks) {
  if (compression == kBitfields) return set_masks(header, masks);
  if (compression == kRle8 && header.bits == 8) {
    header.pixels = BmpPixels::kRle8;
  } else if (compression == kRle4 && header.bits == 4) {
    header.pixels = BmpPixels::kRle4;
  } else if (compression == kRaw && header.bits == 16) {
    header.pixels = BmpPixels::kRgb555;
  } else if (compression == kRaw && header.bits >= 24) {
    header.pixels = BmpPixels::kBytes;
    header.channels = kLayouts[0].channels;
  } else if (compression != kRaw) {
    return {Reason::kImgUnsupported,
            fmt::format("BMP with {} bits and compression {} not supported", header.bits, compression)};
  }
  return {};
}

}  // namespace

bool begins_as_bmp(std::string_view bytes) {
  if (!bytes.starts_with("BM") || bytes.size() < kFileHeaderBytes + 4) return false;
  const auto size = number_at(std::as_bytes(std::span(bytes)), kFileHeaderBytes, 4);
  return std::find(kHeaderSizes.begin(), kHeaderSizes.end(), size) != kHeaderSizes.end();
}

Result<std::optional<BmpHeader>> read_bmp_header(std::span<const std::byte> file) {
  const std::optional<BmpHeader> nothing;
  if (file.size() < kFileHeaderBytes + 4) return nothing;
  const std::uint32_t size = number_at(file, kFileHeaderBytes, 4);
  const std::size_t end = kFileHeaderBytes + size;
  if (file.size() < end) return nothing;
  BmpHeader header;
  std::int64_t width = 0;
  std::int64_t height = 0;
  std::uint32_t compression = kRaw;
  std::uint32_t n_colours = 0;
  Masks masks{};
  std::size_t behind = end;  // of header and masks: where a palette begins
  if (size == kCoreBytes) {
    width = number_at(file, 18, 2);
    height = number_at(file, 20, 2);
    header.bits = static_cast<int>(number_at(file, 24, 2));
    header.palette_step = 3;
  } else {
    width = number_at(file, 18, 4);
    height = number_at(file, 22, 4);
    header.is_top_down = (height >> 24) == 0xFF;
    if (header.is_top_down) height = (std::int64_t{1} << 32) - height;
    header.bits = static_cast<int>(number_at(file, 28, 2));
    compression = number_at(file, 30, 4);
    n_colours = number_at(file, 46, 4);
    if (compression == kBitfields) {
      if (size < 52) behind += 12;
      if (file.size() < behind) return nothing;
      for (std::size_t i = 0; i < 3; ++i) masks[i] = number_at(file, 54 + 4 * i, 4);
      if (size >= 56) masks[3] = number_at(file, 66, 4);
    }
  }
  if (width <= 0 || height <= 0 || width > 0x7FFFFFFF || height > 0x7FFFFFFF) {
    return Status(Reason::kImgCorrupt, "BMP header without a size");
  }
  header.width_px = static_cast<int>(width);
  header.height_px = static_cast<int>(height);
  constexpr std::array<int, 6> kDepths = {1, 4, 8, 16, 24, 32};
  if (std::find(kDepths.begin(), kDepths.end(), header.bits) == kDepths.end()) {
    return Status(Reason::kImgUnsupported, fmt::format("BMP with {} bits per pixel not supported", header.bits));
  }
  STOKER_CHECKED(set_layout(header, compression, masks));
  header.pixels_begin = number_at(file, 10, 4);
  if (header.bits <= 8) {
    header.n_colours = n_colours != 0 ? n_colours : std::size_t{1} << header.bits;
    if (header.n_colours > 65536) {
      return Status(Reason::kImgUnsupported, fmt::format("BMP with a palette of {} colours", header.n_colours));
    }
    header.palette_begin = behind;
    // Some writers forget the palette in the offset.
    if (header.pixels_begin == end) header.pixels_begin += header.palette_step * header.n_colours;
    behind += header.palette_step * header.n_colours;
  }
  if (header.pixels_begin == 0) header.pixels_begin = behind;
  return std::optional(header);
}

Result<Probe> probe_bmp(std::span<const std::byte> prefix, std::uint64_t total_bytes, const ImageLimits& limits) {
  STOKER_TRY(const auto header, read_bmp_header(prefix));
  if (!header) return need_more(prefix.size(), std::max(prefix.size() + 1, kMostHeaderBytes), total_bytes);
  STOKER_CHECKED(check_pixels(header->height_px, header->width_px, limits));
  ImageInfo info;
  info.format = ImageFormat::kBmp;
  info.height_px = header->height_px;
  info.width_px = header->width_px;
  if (header->pixels == BmpPixels::kRle4 || header->pixels == BmpPixels::kRle8) {
    info.scratch_bytes = static_cast<std::size_t>(info.height_px) * static_cast<std::size_t>(info.width_px);
  }
  Probe probe;
  probe.info = info;
  return probe;
}

}  // namespace stoker

#include "media/tiff/tiff_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "media/exif.h"
#include "media/limits.h"

namespace stoker {
namespace {

using std::string_view_literals::operator""sv;

constexpr int kShort = 3;
constexpr int kLong = 4;
constexpr int kMostSamples = 6;
constexpr std::int64_t kMostTileSide = 1 << 20;

/// Numbers in the file's byte order.
class Numbers {
 public:
  explicit Numbers(std::span<const std::byte> file) : file_(file), is_little_(file[0] == std::byte{'I'}) {}
  std::uint32_t at(std::uint64_t where, std::size_t n_bytes) const {
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < n_bytes; ++i) {
      const std::size_t from = is_little_ ? n_bytes - 1 - i : i;
      value = value << 8 | std::to_integer<std::uint32_t>(file_[static_cast<std::size_t>(where) + from]);
    }
    return value;
  }

 private:
  std::span<const std::byte> file_;
  bool is_little_;
};

struct Fields {
  std::int64_t width = 0, height = 0, rows_per_strip = 0, tile_width = 0, tile_height = 0;
  std::int64_t bits = 1, samples = 1, format = 1, photometric = 0, compression = 1, planar = 1;
  bool is_mixed = false;  // samples of different kinds
};

void take(Fields& f, std::uint32_t tag, std::int64_t value) {
  switch (tag) {
    case 256:
      f.width = value;
      break;
    case 257:
      f.height = value;
      break;
    case 258:
      f.bits = value;
      break;
    case 259:
      f.compression = value;
      break;
    case 262:
      f.photometric = value;
      break;
    case 277:
      f.samples = value;
      break;
    case 278:
      f.rows_per_strip = value;
      break;
    case 284:
      f.planar = value;
      break;
    case 322:
      f.tile_width = value;
      break;
    case 323:
      f.tile_height = value;
      break;
    case 339:
      f.format = value;
      break;
    default:
      break;
  }
}

Status check(const Fields& f) {
  if (f.width <= 0 || f.height <= 0 || f.width > 0x7FFFFFFF || f.height > 0x7FFFFFFF) {
    return {Reason::kImgCorrupt, "TIFF directory without a size"};
  }
  if (f.format == 3) return {Reason::kImgUnsupported, fmt::format("TIFF float{} not supported", f.bits)};
  const bool is_small = f.photometric <= 1 || f.photometric == 3;
  const bool fits = f.bits == 8 || (is_small && f.samples == 1 && (f.bits == 1 || f.bits == 2 || f.bits == 4));
  if (!fits || f.is_mixed || f.format != 1) {
    return {Reason::kImgUnsupported,
            fmt::format("TIFF with {} samples of {} bits (sample format {}) not supported, only 8 bits are", f.samples,
                        f.bits, f.format)};
  }
  const bool is_known = f.photometric <= 3 || f.photometric == 5 || (f.photometric == 6 && f.compression == 7);
  if (!is_known || f.samples < 1 || f.samples > kMostSamples) {
    return {Reason::kImgUnsupported,
            fmt::format("TIFF of kind {} (photometric interpretation) with {} samples and compression {} not supported",
                        f.photometric, f.samples, f.compression)};
  }
  if (f.tile_width > kMostTileSide || f.tile_height > kMostTileSide) {
    return {Reason::kImgTooLarge, fmt::format("TIFF with tiles of {}x{}", f.tile_width, f.tile_height)};
  }
  return {};
}

}  // namespace

bool begins_as_tiff(std::string_view bytes) { return bytes.starts_with("II*\0"sv) || bytes.starts_with("MM\0*"sv); }

Result<std::optional<TiffHeader>> read_tiff_header(std::span<const std::byte> file, std::size_t& need) {
  const std::optional<TiffHeader> nothing;
  need = 8;
  if (file.size() < need) return nothing;
  const Numbers numbers(file);
  const std::size_t directory = numbers.at(4, 4);
  need = directory + 2;
  if (file.size() < need) return nothing;
  const std::size_t n_entries = numbers.at(directory, 2);
  need = directory + 2 + 12 * n_entries + 4;
  if (file.size() < need) return nothing;
  Fields fields;
  TiffHeader header;
  header.has_next = numbers.at(need - 4, 4) != 0;
  for (std::size_t i = 0; i < n_entries; ++i) {
    const std::size_t entry = directory + 2 + 12 * i;
    const std::uint32_t tag = numbers.at(entry, 2);
    const std::uint32_t type = numbers.at(entry + 2, 2);
    const std::size_t count = numbers.at(entry + 4, 4);
    header.has_icc = header.has_icc || tag == 34675;
    if ((type != kShort && type != kLong) || count == 0) continue;
    const std::size_t step = type == kShort ? 2 : 4;
    const bool is_per_sample = tag == 258 || tag == 339;
    const std::size_t n_bytes = step * std::min<std::size_t>(count, is_per_sample ? 8 : 1);
    const std::size_t at = step * count > 4 ? numbers.at(entry + 8, 4) : entry + 8;
    if (step * count > 4 && !is_per_sample) continue;  // strips and the like are the codec's
    if (at + n_bytes > file.size()) {
      need = at + n_bytes;
      return nothing;
    }
    const std::int64_t first = numbers.at(at, step);
    for (std::size_t k = step; k < n_bytes; k += step) {
      fields.is_mixed = fields.is_mixed || numbers.at(at + k, step) != first;
    }
    take(fields, tag, first);
  }
  STOKER_CHECKED(check(fields));
  header.height_px = static_cast<int>(fields.height);
  header.width_px = static_cast<int>(fields.width);
  header.bits = static_cast<int>(fields.bits);
  header.n_samples = static_cast<int>(fields.samples);
  header.photometric = static_cast<int>(fields.photometric);
  header.compression = static_cast<int>(fields.compression);
  header.is_planar = fields.planar == 2 && header.n_samples > 1;
  header.is_tiled = fields.tile_width > 0 && fields.tile_height > 0;
  if (header.is_tiled) {
    header.band_rows = static_cast<int>(fields.tile_height);
    header.band_width =
        static_cast<int>((fields.width + fields.tile_width - 1) / fields.tile_width * fields.tile_width);
  } else {
    const bool has_rows = fields.rows_per_strip > 0 && fields.rows_per_strip < fields.height;
    header.band_rows = static_cast<int>(has_rows ? fields.rows_per_strip : fields.height);
    header.band_width = header.width_px;
  }
  return std::optional(header);
}

Result<Probe> probe_tiff(std::span<const std::byte> prefix, std::uint64_t total_bytes, const ImageLimits& limits) {
  std::size_t need = 0;
  STOKER_TRY(const auto header, read_tiff_header(prefix, need));
  if (!header) return need_more(prefix.size(), need, total_bytes);
  STOKER_CHECKED(check_pixels(header->height_px, header->width_px, limits));
  STOKER_CHECKED(check_pixels(header->band_rows, header->band_width, limits));
  ImageInfo info;
  info.format = ImageFormat::kTiff;
  info.height_px = header->height_px;
  info.width_px = header->width_px;
  info.orientation = std::max(1, exif_orientation(prefix).value_or(1));
  info.is_turned_always = true;
  info.scratch_bytes = 2 * header->band_bytes();  // one of them is the codec's
  if (header->has_icc) info.notes.add(ImageNote::kIccIgnored);
  if (header->has_next) info.notes.add(ImageNote::kMorePictures);
  Probe probe;
  probe.info = info;
  return probe;
}

}  // namespace stoker

#include "media/tiff/tiff.h"

#include <fmt/format.h>

#include <algorithm>

#include "media/row_feeder.h"
#include "media/tiff/tiff_file.h"

namespace stoker {
namespace {

using Planes = RowFeeder::Planes;

constexpr int kWhiteIsZero = 0;
constexpr int kPalette = 3;
constexpr int kInk = 5;
enum class Extra : std::uint8_t { kNone, kIgnored, kAlpha, kPremultiplied };

/// What the samples behind the colours are. IMG_UNSUPPORTED where Pillow knows no mode for it.
Result<Extra> extra_of(TIFF* tiff, const TiffHeader& header) {
  std::uint16_t n = 0;
  std::uint16_t* kinds = nullptr;
  TIFFGetFieldDefaulted(tiff, TIFFTAG_EXTRASAMPLES, &n, &kinds);
  const int n_colours = header.photometric == 2 || header.photometric == 6 ? 3 : header.photometric == kInk ? 4 : 1;
  const int n_extra = header.n_samples - n_colours;
  if (n_extra == 0) return Extra::kNone;
  if (n_extra == 1 && n == 0 && header.photometric == 2) return Extra::kAlpha;  // a writer's slip
  const bool is_rgb = header.photometric == 2;
  if (n_extra == n && n_extra > 0) {
    if (kinds[0] == EXTRASAMPLE_UNSPECIFIED) return Extra::kIgnored;
    const bool takes_alpha = is_rgb || header.photometric == 1 || header.photometric == kPalette;
    if (kinds[0] == EXTRASAMPLE_UNASSALPHA && takes_alpha) return Extra::kAlpha;
    if (kinds[0] == EXTRASAMPLE_ASSOCALPHA && is_rgb) return Extra::kPremultiplied;
  }
  return Status(Reason::kImgUnsupported,
                fmt::format("TIFF with {} samples, {} of them extra, not supported", header.n_samples, n));
}

int mul255(int a, int b) {
  const int t = a * b + 128;
  return ((t >> 8) + t) >> 8;
}

}  // namespace

struct TiffDecoder::Impl {
  Scratch band_memory;
  RowFeeder feeder;
  std::array<std::array<std::uint8_t, 3>, 256> colours{};

  Status set_colours(const TiffFile& tiff, const TiffHeader& header) {
    const int n = 1 << std::min(header.bits, 8);
    const int step = 255 / (n - 1);
    for (int i = 0; i < 256; ++i) {
      const int level = std::min(i * step, 255);
      colours[static_cast<std::size_t>(i)].fill(
          static_cast<std::uint8_t>(header.photometric == kWhiteIsZero ? 255 - level : level));
    }
    std::array<std::uint16_t*, 3> maps{};
    if (header.photometric != kPalette) return {};
    if (TIFFGetField(tiff.get(), TIFFTAG_COLORMAP, maps.data(), &maps[1], &maps[2]) != 1) return tiff.failure();
    for (int i = 0; i < n; ++i) {
      for (std::size_t c = 0; c < 3; ++c) {
        colours[static_cast<std::size_t>(i)][c] = static_cast<std::uint8_t>(maps[c][i] >> 8);
      }
    }
    return {};
  }
};

TiffDecoder::TiffDecoder() : impl_(std::make_unique<Impl>()) {}
TiffDecoder::~TiffDecoder() = default;

Status TiffDecoder::decode(std::span<const std::byte> file, const ImageInfo& info, const ImageOptions& options,
                           RowSink& sink, ImageNotes&) {
  std::size_t need = 0;
  STOKER_TRY(const auto found, read_tiff_header(file, need));
  if (!found || found->height_px != info.height_px || found->width_px != info.width_px) {
    return {Reason::kInternal, "TIFF is not what its probe said"};
  }
  const TiffHeader& header = *found;
  TiffFile tiff;
  STOKER_CHECKED(tiff.open(file, header));
  std::uint32_t width = 0;
  std::uint32_t height = 0;
  TIFFGetField(tiff.get(), TIFFTAG_IMAGEWIDTH, &width);
  TIFFGetField(tiff.get(), TIFFTAG_IMAGELENGTH, &height);
  if (width != static_cast<std::uint32_t>(header.width_px) || height != static_cast<std::uint32_t>(header.height_px)) {
    return {Reason::kImgCorrupt, "TIFF directory that can be read in two ways"};
  }
  if (header.photometric == 6) TIFFSetField(tiff.get(), TIFFTAG_JPEGCOLORMODE, JPEGCOLORMODE_RGB);
  const bool is_as_said = header.is_tiled
                              ? TIFFIsTiled(tiff.get()) != 0 && TIFFTileRowSize(tiff.get()) > 0
                              : TIFFIsTiled(tiff.get()) == 0 &&
                                    static_cast<std::size_t>(TIFFScanlineSize(tiff.get())) == header.row_bytes();
  if (!is_as_said) return {Reason::kImgCorrupt, "TIFF whose rows have another length than its directory says"};
  if (TIFFIsCODECConfigured(static_cast<std::uint16_t>(header.compression)) == 0) {
    return {Reason::kImgUnsupported, fmt::format("TIFF with compression {} not supported", header.compression)};
  }
  STOKER_TRY(const Extra extra, extra_of(tiff.get(), header));
  const bool has_alpha = extra == Extra::kAlpha || extra == Extra::kPremultiplied;
  const bool blends = has_alpha && is_blended(options.alpha, header.photometric == 2);
  STOKER_CHECKED(impl_->set_colours(tiff, header));

  auto* band = impl_->band_memory.get<std::uint8_t>(header.band_bytes());
  const std::size_t plane_bytes = header.row_bytes() * static_cast<std::size_t>(header.band_rows);
  const bool has_colours = header.photometric == 2 || header.photometric == 6;
  const auto n_samples = static_cast<std::size_t>(header.n_samples);
  const std::size_t n_colours = has_colours ? 3 : header.photometric == kInk ? 4 : 1;
  return impl_->feeder.feed(header.height_px, header.width_px, sink, [&](int y, const Planes& to) -> Status {
    const int in_band = y % header.band_rows;
    if (in_band == 0) STOKER_CHECKED(tiff.read_band(header, y, band));
    const std::uint8_t* row = band + header.row_bytes() * static_cast<std::size_t>(in_band);
    const auto sample = [&](std::size_t x, std::size_t s) -> int {
      if (header.is_planar) return row[s * plane_bytes + x];
      if (header.bits == 8) return row[x * n_samples + s];
      const std::size_t bit = x * static_cast<std::size_t>(header.bits);
      return row[bit / 8] >> (8 - header.bits - static_cast<int>(bit % 8)) & ((1 << header.bits) - 1);
    };
    for (std::size_t x = 0; x < static_cast<std::size_t>(header.width_px); ++x) {
      const int alpha = has_alpha ? sample(x, n_colours) : 255;
      for (std::size_t c = 0; c < 3; ++c) {
        int value = 0;
        if (has_colours) {
          value = sample(x, c);
          if (extra == Extra::kPremultiplied && alpha != 255) {
            value = alpha == 0 ? 0 : std::min(255, 255 * value / alpha);
          }
        } else if (header.photometric == kInk) {
          const int white = 255 - sample(x, 3);
          value = std::clamp(white - mul255(sample(x, c), white), 0, 255);
        } else {
          value = impl_->colours[static_cast<std::size_t>(sample(x, 0))][c];
        }
        to[c][x] = blends ? on_white(value, alpha) : static_cast<std::uint8_t>(value);
      }
    }
    return {};
  });
}

}  // namespace stoker

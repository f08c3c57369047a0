#include "media/tiff/tiff_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace stoker {

TiffFile::~TiffFile() {
  if (tiff_ != nullptr) TIFFClose(tiff_);
}

tmsize_t TiffFile::on_read(thandle_t self, void* to, tmsize_t n) {
  auto& file = *static_cast<TiffFile*>(self);
  const std::size_t left = file.at_ < file.file_.size() ? file.file_.size() - static_cast<std::size_t>(file.at_) : 0;
  const std::size_t taken = std::min(static_cast<std::size_t>(std::max<tmsize_t>(n, 0)), left);
  if (taken < static_cast<std::size_t>(n)) file.is_short_ = true;
  if (taken > 0) std::memcpy(to, file.file_.data() + file.at_, taken);
  file.at_ += taken;
  return static_cast<tmsize_t>(taken);
}

toff_t TiffFile::on_seek(thandle_t self, toff_t offset, int whence) {
  auto& file = *static_cast<TiffFile*>(self);
  if (whence == SEEK_SET) file.at_ = offset;
  if (whence == SEEK_CUR) file.at_ += offset;
  if (whence == SEEK_END) file.at_ = file.file_.size() + offset;
  return file.at_;
}

int TiffFile::on_error(TIFF*, void* self, const char* module, const char* format, va_list arguments) {
  auto& file = *static_cast<TiffFile*>(self);
  if (!file.said_.empty()) return 1;  // the first one is the cause
  std::array<char, 256> text{};
  std::vsnprintf(text.data(), text.size(), format, arguments);
  file.said_ = fmt::format("{}: {}", module != nullptr ? module : "libtiff", text.data());
  return 1;
}

Status TiffFile::open(std::span<const std::byte> file, const TiffHeader& header) {
  constexpr std::size_t kLeast = std::size_t{64} << 20;
  file_ = file;
  TIFFOpenOptions* options = TIFFOpenOptionsAlloc();
  if (options == nullptr) return {Reason::kInternal, "TIFF: no memory for the codec"};
  TIFFOpenOptionsSetErrorHandlerExtR(options, on_error, this);
  TIFFOpenOptionsSetWarningHandlerExtR(
      options, [](TIFF*, void*, const char*, const char*, va_list) { return 1; }, nullptr);
  const std::size_t most = std::max({kLeast, 2 * header.band_bytes(), file.size() + 4096});
  TIFFOpenOptionsSetMaxSingleMemAlloc(options, static_cast<tmsize_t>(most));
  tiff_ = TIFFClientOpenExt(
      "picture", "rm", this, on_read, [](thandle_t, void*, tmsize_t) { return tmsize_t{0}; }, on_seek,
      [](thandle_t) { return 0; }, [](thandle_t self) { return toff_t{static_cast<TiffFile*>(self)->file_.size()}; },
      [](thandle_t, void**, toff_t*) { return 0; }, [](thandle_t, void*, toff_t) {}, options);
  TIFFOpenOptionsFree(options);
  return tiff_ != nullptr ? Status() : failure();
}

Status TiffFile::read_band(const TiffHeader& header, int first, std::uint8_t* to) {
  const std::size_t plane_bytes = header.row_bytes() * static_cast<std::size_t>(header.band_rows);
  const auto row = static_cast<std::uint32_t>(first);
  for (int s = 0; s < header.n_planes(); ++s, to += plane_bytes) {
    const auto sample = static_cast<std::uint16_t>(s);
    if (!header.is_tiled) {
      const int n_rows = std::min(header.band_rows, header.height_px - first);
      const auto wanted = static_cast<tmsize_t>(header.row_bytes() * static_cast<std::size_t>(n_rows));
      if (TIFFReadEncodedStrip(tiff_, TIFFComputeStrip(tiff_, row, sample), to, wanted) != wanted) return failure();
      continue;
    }
    const auto tile_bytes = static_cast<std::size_t>(TIFFTileSize(tiff_));
    const auto tile_row = static_cast<std::size_t>(TIFFTileRowSize(tiff_));
    const auto n_tiles = tile_row == 0 ? 0 : header.row_bytes() / tile_row;
    if (n_tiles == 0 || tile_row * n_tiles != header.row_bytes() ||
        tile_bytes != tile_row * static_cast<std::size_t>(header.band_rows)) {
      return {Reason::kImgUnsupported, "TIFF with tiles that do not end at whole bytes not supported"};
    }
    std::string tile(tile_bytes, '\0');
    const auto tile_width = static_cast<std::uint32_t>(static_cast<std::size_t>(header.band_width) / n_tiles);
    for (std::size_t t = 0; t < n_tiles; ++t) {
      const auto x = static_cast<std::uint32_t>(t) * tile_width;
      const auto index = TIFFComputeTile(tiff_, x, row, 0, sample);
      if (TIFFReadEncodedTile(tiff_, index, tile.data(), static_cast<tmsize_t>(tile_bytes)) !=
          static_cast<tmsize_t>(tile_bytes)) {
        return failure();
      }
      for (std::size_t y = 0; y < static_cast<std::size_t>(header.band_rows); ++y) {
        std::memcpy(to + y * header.row_bytes() + t * tile_row, tile.data() + y * tile_row, tile_row);
      }
    }
  }
  return {};
}

Status TiffFile::failure() const {
  bool is_short = is_short_;
  std::uint64_t* offsets = nullptr;
  std::uint64_t* counts = nullptr;
  if (tiff_ != nullptr &&
      TIFFGetField(tiff_, TIFFIsTiled(tiff_) != 0 ? TIFFTAG_TILEOFFSETS : TIFFTAG_STRIPOFFSETS, &offsets) == 1 &&
      TIFFGetField(tiff_, TIFFIsTiled(tiff_) != 0 ? TIFFTAG_TILEBYTECOUNTS : TIFFTAG_STRIPBYTECOUNTS, &counts) == 1) {
    const std::uint32_t n = TIFFIsTiled(tiff_) != 0 ? TIFFNumberOfTiles(tiff_) : TIFFNumberOfStrips(tiff_);
    for (std::uint32_t i = 0; i < n; ++i) is_short = is_short || offsets[i] + counts[i] > file_.size();
  }
  return {is_short ? Reason::kImgTruncated : Reason::kImgCorrupt,
          fmt::format("TIFF: {}", said_.empty() ? "the codec gives fewer rows than announced" : said_)};
}

}  // namespace stoker

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/result.h"
#include "media/image.h"

namespace stoker {

/// What the first directory of a TIFF says about its samples.
struct TiffHeader {
  int height_px = 0;
  int width_px = 0;
  int bits = 1;
  int n_samples = 1;
  int photometric = 0;
  int compression = 1;
  bool is_planar = false;  ///< a plane per sample
  bool is_tiled = false;
  int band_rows = 0;   ///< rows of a strip or tile
  int band_width = 0;  ///< whole tiles
  bool has_icc = false;
  bool has_next = false;

  int n_planes() const { return is_planar ? n_samples : 1; }
  /// Bytes of one row of one plane of a band.
  std::size_t row_bytes() const {
    const std::size_t in_plane = is_planar ? 1 : static_cast<std::size_t>(n_samples);
    return (static_cast<std::size_t>(band_width) * in_plane * static_cast<std::size_t>(bits) + 7) / 8;
  }
  std::size_t band_bytes() const {
    return row_bytes() * static_cast<std::size_t>(band_rows) * static_cast<std::size_t>(n_planes());
  }
};

bool begins_as_tiff(std::string_view bytes);

/// @return nothing if `file` ends before `need`; IMG_CORRUPT, IMG_UNSUPPORTED. Source: TIFF 6.0.
Result<std::optional<TiffHeader>> read_tiff_header(std::span<const std::byte> file, std::size_t& need);

/// `probe` for TIFF. A directory at the file's end makes it ask for the whole file.
Result<Probe> probe_tiff(std::span<const std::byte> prefix, std::uint64_t total_bytes, const ImageLimits& limits);

}  // namespace stoker

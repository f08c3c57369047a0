#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/result.h"
#include "media/image.h"

namespace stoker {

bool begins_as_heif(std::string_view bytes);

/// What the boxes in front of a HEIF or AVIF file say about its primary picture.
struct HeifHeader {
  ImageInfo info;
  bool is_avif = false;         ///< coded with AV1
  std::uint64_t items_end = 0;  ///< no byte that an item needs lies at or behind this one
};

/// Reads the boxes of a whole file.
Result<HeifHeader> read_heif_header(std::span<const std::byte> file, const ImageLimits& limits);

/// `probe` for HEIF and AVIF. Needs the boxes `ftyp` and `meta`, which stand in front of the pixels.
///
/// Orientation is that of the boxes `irot` and `imir`; EXIF has no say. Of AVIF it is announced, and applied by the
/// resampler, as Pillow 13 does through exif_transpose. Of HEIC the codec applies it, with the crop of `clap`, as
/// pillow-heif does on opening: size and orientation are then those of the upright picture.
/// Source: ISO/IEC 14496-12 (boxes), ISO/IEC 23008-12, sections 6.5 and 9.3; AVIF 1.1.
Result<Probe> probe_heif(std::span<const std::byte> prefix, std::uint64_t total_bytes, const ImageLimits& limits);

}  // namespace stoker

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"
#include "media/image.h"

namespace stoker {

/// `probe` for JPEG: walks the segments up to the first scan, so that the size, the EXIF orientation wherever it
/// stands, and whether the picture comes in several scans are known. Source: ITU-T T.81, annex B.
Result<Probe> probe_jpeg(std::span<const std::byte> prefix, std::uint64_t total_bytes, const ImageLimits& limits);

/// Number of scans in what follows the first scan's header, stopping at the end of the image or once it exceeds
/// `limit`.
int count_scans(std::span<const std::byte> after_first_header, int limit);

}  // namespace stoker

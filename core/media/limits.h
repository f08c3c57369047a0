#pragma once

#include <cstdint>
#include <string>

#include "media/image.h"

namespace stoker {

/// IMG_TOO_LARGE if the announced picture has more pixels than the limit; decided before any memory is taken.
Status check_pixels(std::int64_t height_px, std::int64_t width_px, const ImageLimits& limits);

/// The answer of a probe whose prefix ends at `have` while `want` bytes are needed: the missing range, or IMG_TRUNCATED
/// if there are no more bytes. Asks for a little more than needed, so that a chain of small segments costs few round
/// trips.
Result<Probe> need_more(std::uint64_t have, std::uint64_t want, std::uint64_t total_bytes);

}  // namespace stoker

#include "media/limits.h"

#include <fmt/format.h>

#include <algorithm>

namespace stoker {

Status check_pixels(std::int64_t height_px, std::int64_t width_px, const ImageLimits& limits) {
  const std::int64_t pixels = height_px * width_px;  // both below 2^31
  if (pixels <= limits.max_pixels) return {};
  return {Reason::kImgTooLarge,
          fmt::format("{}x{} = {} px > limit {} (media.max_pixels)", width_px, height_px, pixels, limits.max_pixels)};
}

Result<Probe> need_more(std::uint64_t have, std::uint64_t want, std::uint64_t total_bytes) {
  constexpr std::uint64_t kAhead = 4096;
  if (total_bytes != 0 && have >= total_bytes) {
    return Status(Reason::kImgTruncated, fmt::format("ends at byte {}, inside the header", have));
  }
  Probe probe;
  probe.need_begin = have;
  probe.need_end = want + kAhead;
  if (total_bytes != 0) probe.need_end = std::min(probe.need_end, total_bytes);
  return probe;
}

}  // namespace stoker

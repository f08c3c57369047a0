#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"
#include "media/image.h"

namespace stoker {

/// One chunk of a RIFF file.
struct RiffChunk {
  std::uint32_t tag = 0;  ///< four letters, the first in the lowest byte
  std::size_t begin = 0;  ///< of its data
  std::size_t n_bytes = 0;
  /// Where the next one begins.
  std::uint64_t end() const { return std::uint64_t{begin} + n_bytes + n_bytes % 2; }
};

/// `probe` for WebP. Where the file says that it has metadata and they are not in `prefix`, the answer names the range
/// behind the pixels. Source: WebP Container Specification; RFC 6386 section 9.1 and the VP8L specification for sizes.
Result<Probe> probe_webp(std::span<const std::byte> prefix, std::uint64_t total_bytes, const ImageLimits& limits);

/// Metadata in the chunks behind the pixels.
void read_webp_tail(std::span<const std::byte> piece, ImageInfo& info);

}  // namespace stoker

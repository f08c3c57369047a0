#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "data/pack.h"

namespace stoker {

// A pack on its way to another process is two runs of bytes: its patches as they lie, 3,072 bytes for each visual token
// of Qwen3-VL, and everything behind them squeezed, 1 to 2 bytes for each token.

/// The patches of a pack: the first `pixel_bytes()` of its planned layout. Borrows the batch.
std::span<const std::byte> pixels_of(const Batch& batch);

/// Everything behind the patches as one frame of zstd. Threads: any. CPU: less than 1 ms for a pack of 16,384 tokens.
Result<std::string> squeeze(const Batch& batch);

/// No pack's arrays take more behind its patches: as many as 2^24 tokens do.
inline constexpr std::size_t kMaxTailBytes = std::size_t{1} << 30;

/// What squeeze() was given, in memory of its own: `Batch::block` of a batch whose patches lie apart. Foreign bytes:
/// the size that they announce is compared with the layout's before anything is allocated.
/// @return PEER_MISMATCH for another size than the layout has behind its patches, or what is not one sound frame.
Result<std::shared_ptr<const Block>> expand(std::string_view bytes, const PackLayout& layout);

}  // namespace stoker

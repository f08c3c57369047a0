#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "base/result.h"
#include "peers/messages.h"
#include "pipeline/pack_task.h"

namespace stoker {

/// A sample that turned out bad while its pack was made.
struct LateSample {
  std::uint64_t order_index = 0;
  std::string media;  ///< empty where the row itself is to blame
  Status status;
};

/// What the plan's process must know of a pack that another one made, the arrays apart.
struct MadeMessage {
  peers::Pack pack = {};  ///< without what only the plan says: states, the end of the step, counts of bad samples
  std::vector<LateSample> found_late = {};  ///< by order_index, each once
  std::vector<Hash128> stale = {};          ///< ReadyPack::stale
};

/// No message is longer.
inline constexpr std::size_t kMaxMadeBytes = std::size_t{16} << 20;

std::string encode_made(const ReadyPack& pack);
std::string encode_made(const MadeMessage& message);

/// Reads foreign bytes: takes memory in proportion to them, whatever they claim; what a pack's shape claims is checked
/// as peers::decode does. What comes of encoding it again is taken too, and is the same.
/// @return PEER_MISMATCH for another version, or what is no made pack.
Result<MadeMessage> decode_made(std::string_view bytes);

}  // namespace stoker

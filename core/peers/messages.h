#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.h"
#include "data/pack.h"
#include "plan/step.h"

namespace stoker::peers {

/// Samples that were not used.
using BadCounts = std::vector<std::pair<Reason, std::int64_t>>;

/// One pack with all that delivering it needs, on whichever peer.
struct Delivery {
  Batch batch = {};
  std::int64_t n_samples = 0;  ///< of the plan, those that turned out bad left out
  bool is_last_of_step = false;
  PlanState state_after = {};  ///< of the whole step
  BadCounts bad = {};          ///< samples not used since the delivery before, counted
};

/// What a model's processor does to pixels once they are on the device.
struct PixelFacts {
  std::array<double, 3> image_mean{}, image_std{};
  std::array<double, 3> clip_mean{}, clip_std{};
  double image_rescale = 1, clip_rescale = 1;
  std::int32_t patch = 0, merge = 0, temporal_patch = 0;

  bool operator==(const PixelFacts&) const = default;
};

// --- follower to leader

/// The first message: who asks.
struct Hello {
  std::int32_t rank = 0;
  std::string settings;  ///< "name=hash ..." of all that peers must have in common
};
/// The follower's trainer asked for its first batch.
struct Start {
  PlanState state;
};
/// Its trainer wants a step.
struct Want {
  std::int64_t step = 0;
};
/// Its trainer took a pack.
struct Taken {
  std::uint64_t sequence = 0;
};
/// The last array of a pack is gone.
struct Released {
  std::uint64_t sequence = 0;
};
/// It takes no more packs, and has not seen those from `n_received` on; it may still hold some of the others.
struct Leave {
  std::uint64_t n_received = 0;
};

// --- leader to follower

/// Not taken in, or not yet.
struct Refused {
  std::string sentence;
};
/// What opening is doing, for people.
struct Progress {
  std::string line;
};
/// The leader has opened model and data.
struct Welcome {
  std::string fingerprint;
  PixelFacts pixels;
};
/// The leader's trainer asked for its first batch.
struct Started {
  PlanState state;
};
/// A pack. The memory of a block that the follower does not know yet comes with it.
struct Pack {
  std::uint64_t sequence = 0;  ///< running number since the start
  std::uint64_t block_id = 0;
  std::uint64_t block_bytes = 0;
  Delivery delivery = {};  ///< its batch without the block
};
/// The memory of a block was given up.
struct Forget {
  std::uint64_t block_id = 0;
};
/// Nothing comes after the packs before: what ended the run, or OK at the end of finite data.
struct End {
  Status status;
  BadCounts bad = {};  ///< since the last pack
};

using Message =
    std::variant<Hello, Start, Want, Taken, Released, Leave, Refused, Progress, Welcome, Started, Pack, Forget, End>;

/// No message is longer; texts in it are cut to fit.
inline constexpr std::size_t kMaxMessageBytes = 32768;

/// A message as bytes, with the protocol's version in front.
std::string encode(const Message& message);

/// The message that the bytes are, all of them. Foreign bytes: every count is checked before anything is made of it,
/// and a Pack describes arrays that lie within its `block_bytes`.
/// @return PEER_MISMATCH for another version, or what is no message.
Result<Message> decode(std::string_view bytes);

}  // namespace stoker::peers

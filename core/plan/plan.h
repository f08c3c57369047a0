#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace stoker {

/// What planning needs to know of one position of the order; no pixels.
struct PlanSample {
  std::uint64_t order_index = 0;   ///< position in the order
  std::int64_t tokens = 0;         ///< visual tokens included
  std::int64_t target_tokens = 0;  ///< tokens with a label
  std::int64_t patches = 0;
  std::int32_t images = 0;         ///< still ones
  std::int32_t videos = 0;         ///< clips; their patches count in `patches`
  std::int64_t cost_language = 0;  ///< see plan/cost.h
  std::int64_t cost_vision = 0;
  bool usable = true;  ///< false: known to be bad, takes no place in a pack
};

/// What a micro-batch is.
enum class PackForm : std::uint8_t {
  kPacked,       ///< samples one after another in one sequence of at most `tokens_per_pack`
  kSamples,      ///< `samples_per_pack` rows, padded to the longest; none longer than `tokens_per_pack`
  kTokenBudget,  ///< rows padded to the longest; rows * longest at most `tokens_per_pack`
};

/// Which vision calls every pack makes, so that all ranks make the same.
enum class VisionUniform : std::uint8_t {
  kNone,
  kImage,          ///< at least one still image
  kImageAndVideo,  ///< at least one still image and at least one clip
};

/// What is made even between packs.
enum class PackBalance : std::uint8_t {
  kFlops,   ///< tokens, language cost and vision cost
  kTokens,  ///< tokens
  kNone,    ///< nothing: samples fill packs in the order's sequence, and packs keep it
};

/// Tokens of the segment that stands in for missing vision calls or samples; not aligned. Every family has the same,
/// and a model whose own differ is refused when it is loaded.
struct DummyTokens {
  std::int64_t text = 1;             ///< without vision: end of text
  std::int64_t image = 3;            ///< start, one merged patch, end
  std::int64_t video = 3;            ///< the same with a frame group
  std::int64_t image_and_video = 6;  ///< both

  bool operator==(const DummyTokens&) const = default;
};

/// Part of the fingerprint: these decide what comes out. What they add up to is in plan/padding.h.
struct PackSettings {
  std::int64_t tokens_per_pack = 16384;
  std::int32_t packs_per_step = 64;  ///< over all ranks and micro-batches
  PackForm form = PackForm::kPacked;
  std::int32_t samples_per_pack = 1;  ///< of kSamples
  PackBalance balance = PackBalance::kFlops;
  std::int32_t max_images = 0;        ///< still images and clips of a pack, one each; 0: no limit
  std::int64_t max_patches = 0;       ///< of images and clips of a pack; 0: no limit
  std::int64_t align_samples_to = 1;  ///< every sample's length is rounded up to a multiple of this
  std::int64_t pad_to = 1;            ///< T, or the rows of a padded form, are: `tokens_per_pack` for all alike
  VisionUniform vision_uniform = VisionUniform::kNone;
  DummyTokens dummy = {};
};

/// @return kSettings naming the setting that is out of range, or the two that do not go together.
Status check_pack_settings(const PackSettings& settings);

/// Whether a sample fits into a pack of its own.
/// @return SEQ_TOO_LONG, or PACK_LIMIT for more images or patches than `max_images` or `max_patches`.
Status check_fits(const PackSettings& settings, const PlanSample& sample);

/// One pack: members and their sums.
struct PackPlan {
  std::vector<std::uint32_t> members;  ///< indices into the window's samples, ascending
  std::int64_t tokens = 0;
  std::int64_t target_tokens = 0;
  std::int64_t patches = 0;
  std::int32_t images = 0;
  std::int32_t videos = 0;
  std::int64_t cost_language = 0;  ///< of padded forms: rows * that of the dearest
  std::int64_t cost_vision = 0;

  std::int64_t aligned_tokens = 0;  ///< of the members, each rounded up to `align_samples_to`
  std::int64_t row_tokens = 0;      ///< length of the rows of a padded form; 0 for kPacked
  std::int64_t total_tokens = 0;    ///< T, with dummy segment and padding
  bool needs_image_dummy = false;   ///< its dummy segment holds a still image,
  bool needs_video_dummy = false;   ///< a clip, or both

  std::int64_t cost() const { return cost_language + cost_vision; }
};

/// The packs of one window, in the one sequence in which they are delivered; neighbours are alike in cost.
struct WindowPlan {
  std::uint64_t window = 0;
  std::vector<PackPlan> packs;
  std::uint64_t n_samples = 0;            ///< positions of the window
  std::uint64_t n_usable = 0;             ///< of which in a pack
  std::uint64_t n_trailing_unusable = 0;  ///< positions after the last usable one

  /// 32 hexadecimal digits over window, members and sums: what ranks compare.
  std::string digest() const;
};

/// Packs the usable samples of a window: each exactly once, none split, at most `tokens_per_pack` per pack, near-full,
/// and even in tokens, language cost and vision cost at once. Pure and in integers: every rank computes the same.
/// @return kSettings for settings out of range; kInternal if a usable sample has no token, more than longest_sample(),
///         more than `max_images` or `max_patches`, or a negative cost (the caller refuses such rows as bad samples
///         first, see check_fits).
/// Threads: any. Under 1 us per sample.
Result<WindowPlan> plan_window(std::uint64_t window, std::span<const PlanSample> samples, const PackSettings& settings);

}  // namespace stoker

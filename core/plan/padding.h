#pragma once

#include <cstdint>

#include "plan/plan.h"

namespace stoker {

/// Where alignment, padding and dummies are reckoned, for the planner and for what builds the batch:
///
/// - A sample takes its length rounded up to `align_samples_to`, and so does a dummy segment.
/// - kPacked: T is the sum over all segments, rounded up to `pad_to`; the tail is one segment of padding.
/// - Padded forms: every segment is a row; rows are as long as the longest segment, rounded up to `pad_to`; T is
///   rows * length. A dummy's row counts in a token budget, but is one more than `samples_per_pack`.
/// - A dummy segment is one segment whatever it holds. With `vision_uniform` every pack of kPacked keeps room for one,
///   so that it can take the place of a sample that turns out bad. In the padded forms it takes that sample's row.
///
/// Pure; settings that check_pack_settings accepts.

constexpr std::int64_t round_up(std::int64_t n, std::int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

/// Tokens that a segment of `tokens` takes.
constexpr std::int64_t aligned_tokens(const PackSettings& settings, std::int64_t tokens) {
  return round_up(tokens, settings.align_samples_to);
}

/// Tokens of a dummy segment with a still image, a clip, both or neither; not aligned.
constexpr std::int64_t dummy_tokens(const PackSettings& settings, bool has_image, bool has_video) {
  const DummyTokens& dummy = settings.dummy;
  if (has_image) return has_video ? dummy.image_and_video : dummy.image;
  return has_video ? dummy.video : dummy.text;
}

/// What a pack lacks under `vision_uniform`; an empty pack of the last step lacks all.
struct MissingVision {
  bool image = false;
  bool video = false;

  constexpr bool any() const { return image || video; }
  bool operator==(const MissingVision&) const = default;
};
constexpr MissingVision missing_vision(const PackSettings& settings, std::int64_t images, std::int64_t videos) {
  return {.image = settings.vision_uniform != VisionUniform::kNone && images == 0,
          .video = settings.vision_uniform == VisionUniform::kImageAndVideo && videos == 0};
}

/// Aligned tokens that every pack of kPacked keeps free for a dummy segment; 0 for padded forms.
constexpr std::int64_t reserved_tokens(const PackSettings& settings) {
  if (settings.form != PackForm::kPacked || settings.vision_uniform == VisionUniform::kNone) return 0;
  return aligned_tokens(settings,
                        dummy_tokens(settings, true, settings.vision_uniform == VisionUniform::kImageAndVideo));
}

/// Aligned tokens that the samples of a pack of kPacked may take together, or a row of a padded form.
constexpr std::int64_t room_for_samples(const PackSettings& settings) {
  const std::int64_t unit = settings.pad_to > 1 ? settings.pad_to : settings.align_samples_to;
  // Beside the one row of a budget there must be room for a dummy's.
  const bool is_half = settings.form == PackForm::kTokenBudget && settings.vision_uniform != VisionUniform::kNone;
  return settings.tokens_per_pack / (is_half ? 2 : 1) / unit * unit - reserved_tokens(settings);
}

/// The most tokens that a sample may have; a longer one is a bad sample (SEQ_TOO_LONG).
constexpr std::int64_t longest_sample(const PackSettings& settings) { return room_for_samples(settings); }

/// Length of the rows of a padded form, of the tokens of its longest segment.
constexpr std::int64_t row_tokens(const PackSettings& settings, std::int64_t longest) {
  return round_up(aligned_tokens(settings, longest), settings.pad_to);
}

/// T of a pack of kPacked whose segments, a dummy included, take `aligned` tokens.
constexpr std::int64_t padded_tokens(const PackSettings& settings, std::int64_t aligned) {
  return round_up(aligned, settings.pad_to);
}

/// Completes a plan whose members and sums stand: what it lacks, its rows' length and T. For an empty pack, the dummy
/// that completes a last step, too.
/// @param longest  Tokens of its longest member; 0 without one.
constexpr void finish_pack(const PackSettings& settings, std::int64_t longest, PackPlan& pack) {
  const MissingVision missing = missing_vision(settings, pack.images, pack.videos);
  pack.needs_image_dummy = missing.image;
  pack.needs_video_dummy = missing.video;
  const bool has_dummy = missing.any() || pack.members.empty();
  const std::int64_t dummy = has_dummy ? dummy_tokens(settings, missing.image, missing.video) : 0;
  if (settings.form == PackForm::kPacked) {
    pack.row_tokens = 0;
    pack.total_tokens = padded_tokens(settings, pack.aligned_tokens + aligned_tokens(settings, dummy));
  } else {
    pack.row_tokens = row_tokens(settings, longest > dummy ? longest : dummy);
    pack.total_tokens = pack.row_tokens * (static_cast<std::int64_t>(pack.members.size()) + (has_dummy ? 1 : 0));
  }
}

}  // namespace stoker

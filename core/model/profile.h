#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "media/image.h"

namespace stoker {

/// Whether guarded tokens inside a row's content are tokens or text.
enum class ContentTokens : std::uint8_t { kGuard, kRaw };

/// What happens to a turn that the chat template does not print: `developer`, and `system` behind the first place.
enum class DroppedRoles : std::uint8_t {
  kError,  ///< ROLE_UNKNOWN: nothing that a row says disappears
  kDrop,   ///< as the template does, without a word
};

/// Which variant of smart_resize gives an image's size.
enum class ImageSizeRule : std::uint8_t {
  kTransformers,  ///< 4.57 and 5.x: a side that rounds to 0 is enlarged again; shrinking never goes below one factor
  kQwenVlUtils,   ///< 0.0.14: limits must be in order; a side is at least one factor; shrinking is not held there
};

/// How a level becomes a float: the two orders of the same arithmetic differ in a last bit of float32.
enum class NormaliseRule : std::uint8_t {
  kTorchvision,  ///< (u - mean * 255) / (std * 255), all in float32
  kPil,          ///< u / 255 in double, rounded to float32, then (x - mean) / std in float32
};

/// How a Qwen3-VL clip stands in the text.
enum class ClipText : std::uint8_t {
  kInsideOuterPair,  ///< transformers from 5.10: video_pad is replaced, the template's start and end stay around it
  kReplacesTriplet,  ///< before: start, pad and end of the template are replaced together
};

/// How frames are chosen from a source of known length and rate.
enum class FrameSampling : std::uint8_t {
  kTransformers,  ///< each family's own rule: Qwen3-VL linspace in double, Qwen2-VL and 2.5 torch.arange
  kQwenVlUtils,   ///< an even count; torch.linspace in float32 with fused multiply-add
};

/// How large a clip's frames become.
enum class ClipSizeRule : std::uint8_t {
  kTransformers518,  ///< a side below one factor is scaled up first
  kTransformers457,  ///< a side below one factor is an error
  kQwenVlUtils,      ///< limits per frame from a budget over the clip; images of a list are sized twice
};

/// M-RoPE positions of clips of Qwen2-VL and Qwen2.5-VL; for images and for Qwen3-VL both agree.
enum class ClipPositions : std::uint8_t {
  kFractionalSeconds,  ///< 5.18: t = trunc(i * tokens_per_second * seconds); text goes on after max(grid_h, grid_w) /
                       ///< merge, whatever the number of frames
  kWholeSeconds,       ///< 4.57: seconds truncated to an integer first; text goes on after the largest position used
};

/// What "the reference" means: every fact that the versions of its libraries decide. docs/profiles.md has the table.
///
/// Where the reference reads files by decoders that are not ours (torchvision.io, torchcodec), equality is claimed for
/// equal RGB: both sides are given the same decoded picture. The fields on orientation, alpha and depth then say what
/// the reference does with a Pillow image of that file.
struct Profile {
  std::string_view name;
  bool is_strict = true;  ///< a setting that contradicts it is an error

  bool is_exif_applied = false;
  AlphaRule alpha = AlphaRule::kDrop;
  Grey16Rule grey16 = Grey16Rule::kClip;
  Resizer image_resize = Resizer::kAten;
  ImageSizeRule image_size = ImageSizeRule::kTransformers;
  NormaliseRule image_normalise = NormaliseRule::kTorchvision;

  ContentTokens content_tokens = ContentTokens::kRaw;
  DroppedRoles dropped_roles = DroppedRoles::kDrop;

  Resizer clip_resize = Resizer::kAten;  ///< clips are normalised as torchvision does in every profile
  ClipText clip_text = ClipText::kInsideOuterPair;
  FrameSampling frame_sampling = FrameSampling::kTransformers;
  ClipSizeRule clip_size = ClipSizeRule::kTransformers518;
  bool is_clip_capped_per_frame = false;  ///< transformers' cap_pixels_per_frame, announced as 5.22's only behaviour
  ClipPositions clip_positions = ClipPositions::kFractionalSeconds;
  double frames_per_s_if_unknown = 24;               ///< of a clip whose row does not say, in the text of Qwen3-VL
  double frames_per_s_in_positions_if_unknown = 24;  ///< the same in the positions of Qwen2.5-VL

  /// Every fact by name, the same text for equal profiles only: part of a run's fingerprint.
  std::string facts() const;
};

/// All of them; the first is the default, `stoker`.
std::span<const Profile> profiles();
/// @return nullptr if there is none of that name.
const Profile* find_profile(std::string_view name);

/// What the settings say beside the profile's name; "auto" takes the profile's fact.
struct ProfileOverrides {
  std::string exif = "auto";            ///< apply, ignore
  std::string alpha = "auto";           ///< white, white-rgba, drop
  std::string grey16 = "auto";          ///< scale, clip
  std::string content_tokens = "auto";  ///< guard, raw
};

/// The profile that a run follows.
/// @return SETTINGS for a name or value that does not exist, and for one that contradicts a strict profile.
Result<Profile> resolve_profile(std::string_view name, const ProfileOverrides& overrides);

/// The words of ProfileOverrides for the facts of a profile.
ProfileOverrides words_of(const Profile& profile);

}  // namespace stoker

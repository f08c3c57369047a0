#include "model/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

namespace stoker {
namespace {

/// Values of one enumeration by name, as settings and fingerprints write them.
template <typename E>
using Words = std::span<const std::pair<std::string_view, E>>;

constexpr std::array<std::pair<std::string_view, bool>, 2> kExif = {{{"apply", true}, {"ignore", false}}};
constexpr std::array<std::pair<std::string_view, AlphaRule>, 3> kAlpha = {
    {{"white", AlphaRule::kWhite}, {"white-rgba", AlphaRule::kWhiteRgba}, {"drop", AlphaRule::kDrop}}};
constexpr std::array<std::pair<std::string_view, Grey16Rule>, 2> kGrey16 = {
    {{"scale", Grey16Rule::kScale}, {"clip", Grey16Rule::kClip}}};
constexpr std::array<std::pair<std::string_view, ContentTokens>, 2> kContent = {
    {{"guard", ContentTokens::kGuard}, {"raw", ContentTokens::kRaw}}};

/// Facts of Pillow's convert("RGB") and of the torchvision backend, transformers 5.18.0 with torch 2.13, torchvision
/// 0.28 and Pillow 13.0: an image given as a PIL image is not turned (image_transforms.py), a file is read by
/// torchvision.io without orientation (image_utils.py, load_image_as_tensor).
constexpr Profile kTorchvision518{.name = "hf-5.18-torchvision"};

constexpr Profile with_pil(Profile p) {
  p.name = "hf-5.18-pil";
  p.is_exif_applied = true;  // image_utils.py, load_image: ImageOps.exif_transpose
  p.image_resize = Resizer::kPillow13;
  p.image_normalise = NormaliseRule::kPil;
  return p;  // there is one video processor, whatever the image backend: torchvision's
}

/// transformers 4.57.3. Qwen2-VL's image processor is the fast one there, too (image_processing_auto.py), and files
/// were read by Pillow and turned. models/qwen3_vl/processing_qwen3_vl.py replaces the whole triplet;
/// models/qwen2_5_vl/modeling_qwen2_5_vl.py truncates the seconds.
constexpr Profile with_457(Profile p) {
  p.name = "hf-4.57";
  p.is_exif_applied = true;
  p.clip_text = ClipText::kReplacesTriplet;
  p.clip_size = ClipSizeRule::kTransformers457;
  p.clip_positions = ClipPositions::kWholeSeconds;
  p.frames_per_s_in_positions_if_unknown = 2;  // models/qwen2_5_vl/processing_qwen2_5_vl.py: the keyword `fps`
  return p;
}

/// qwen-vl-utils 0.0.14 (vision_process.py) with Pillow 13.0 sizes and resizes; the processor of transformers 5.18.0 is
/// called with do_resize=False and given its video metadata.
constexpr Profile with_qvu(Profile p) {
  p.name = "qvu+hf";
  p.alpha = AlphaRule::kWhiteRgba;
  p.image_resize = Resizer::kPillow13;
  p.image_size = ImageSizeRule::kQwenVlUtils;
  p.clip_resize = Resizer::kFloat;
  p.frame_sampling = FrameSampling::kQwenVlUtils;
  p.clip_size = ClipSizeRule::kQwenVlUtils;
  p.frames_per_s_if_unknown = p.frames_per_s_in_positions_if_unknown = 2;
  return p;
}

/// What a model is trained with by default: the numbers of the current transformers, and nothing lost from the data.
constexpr Profile with_care(Profile p) {
  p.name = "stoker";
  p.is_strict = false;
  p.is_exif_applied = true;
  p.alpha = AlphaRule::kWhite;
  p.grey16 = Grey16Rule::kScale;
  p.content_tokens = ContentTokens::kGuard;
  p.dropped_roles = DroppedRoles::kError;
  p.frames_per_s_if_unknown = p.frames_per_s_in_positions_if_unknown = 2;
  return p;
}

constexpr std::array<Profile, 5> kProfiles = {with_care(kTorchvision518), kTorchvision518, with_pil(kTorchvision518),
                                              with_457(kTorchvision518), with_qvu(kTorchvision518)};

template <typename E, std::size_t N>
std::string_view word_of(const std::array<std::pair<std::string_view, E>, N>& words, E value) {
  for (const auto& [word, v] : words) {
    if (v == value) return word;
  }
  return "";
}

template <typename E, std::size_t N>
Status apply(const Profile& profile, std::string_view setting,
             const std::array<std::pair<std::string_view, E>, N>& words, const std::string& wanted, E& fact) {
  if (wanted == "auto") return {};
  const auto found = std::find_if(words.begin(), words.end(), [&](const auto& w) { return w.first == wanted; });
  if (found == words.end()) {
    std::string all = "auto";
    for (const auto& w : words) all += fmt::format(", {}", w.first);
    return Status(Reason::kSettings, fmt::format("{}: {} is not served; it takes {}", setting, wanted, all));
  }
  if (profile.is_strict && found->second != fact) {
    return Status(Reason::kSettings,
                  fmt::format("{}: {} contradicts reference: {}, which has {}; leave {} out, or take reference: stoker",
                              setting, wanted, profile.name, word_of(words, fact), setting));
  }
  fact = found->second;
  return {};
}

}  // namespace

std::span<const Profile> profiles() { return kProfiles; }

const Profile* find_profile(std::string_view name) {
  const auto found = std::find_if(kProfiles.begin(), kProfiles.end(), [&](const Profile& p) { return p.name == name; });
  return found == kProfiles.end() ? nullptr : &*found;
}

std::string Profile::facts() const {
  const ProfileOverrides words = words_of(*this);
  const auto number = [](auto value) { return static_cast<int>(value); };
  return fmt::format(
      "name={} exif={} alpha={} grey16={} image_resize={} image_size={} image_normalise={} content_tokens={} "
      "dropped_roles={} clip_resize={} clip_text={} frame_sampling={} clip_size={} clip_cap={} clip_positions={} "
      "frames_per_s={} frames_per_s_in_positions={}",
      name, words.exif, words.alpha, words.grey16, number(image_resize), number(image_size), number(image_normalise),
      words.content_tokens, number(dropped_roles), number(clip_resize), number(clip_text), number(frame_sampling),
      number(clip_size), number(is_clip_capped_per_frame), number(clip_positions), frames_per_s_if_unknown,
      frames_per_s_in_positions_if_unknown);
}

ProfileOverrides words_of(const Profile& profile) {
  return {.exif = std::string(word_of(kExif, profile.is_exif_applied)),
          .alpha = std::string(word_of(kAlpha, profile.alpha)),
          .grey16 = std::string(word_of(kGrey16, profile.grey16)),
          .content_tokens = std::string(word_of(kContent, profile.content_tokens))};
}

Result<Profile> resolve_profile(std::string_view name, const ProfileOverrides& overrides) {
  const Profile* const found = find_profile(name);
  if (found == nullptr) {
    std::vector<std::string_view> all;
    for (const Profile& p : kProfiles) all.push_back(p.name);
    return Status(Reason::kSettings,
                  fmt::format("reference: {} is not served; it takes {}", name, fmt::join(all, ", ")));
  }
  Profile profile = *found;
  STOKER_CHECKED(apply(profile, "media.exif", kExif, overrides.exif, profile.is_exif_applied));
  STOKER_CHECKED(apply(profile, "media.alpha", kAlpha, overrides.alpha, profile.alpha));
  STOKER_CHECKED(apply(profile, "media.grey16", kGrey16, overrides.grey16, profile.grey16));
  STOKER_CHECKED(apply(profile, "content_tokens", kContent, overrides.content_tokens, profile.content_tokens));
  return profile;
}

}  // namespace stoker

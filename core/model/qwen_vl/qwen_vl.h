#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "data/pack.h"
#include "data/sample.h"
#include "model/profile.h"
#include "model/qwen_vl/box_text.h"
#include "model/qwen_vl/clip.h"
#include "model/qwen_vl/expand.h"
#include "model/qwen_vl/family.h"
#include "model/qwen_vl/labels.h"
#include "model/qwen_vl/processor_config.h"
#include "model/qwen_vl/sample_text.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace stoker::qwen_vl {

/// How a conversation becomes ids and labels, beside what the profile says.
struct TextOptions {
  text::TemplateEngine engine = text::TemplateEngine::kAuto;
  LabelRule labels = {};
  std::optional<BoxForm> box_form = {};          ///< absent: the family's own
  text::TurnRendererFactory make_renderer = {};  ///< for templates that are not rendered natively
};

/// What a row asks of the size of a picture or clip.
SizeRequest request_of(const MediaRef& media);

/// What the plan of a listed clip follows from.
struct ClipRequest {
  std::int64_t n_frames = 0;       ///< of the list
  SizePx frame;                    ///< upright; every one has it
  double frames_per_s = 0;         ///< 0: the row does not say
  double source_frames_per_s = 0;  ///< the same
  SizeRequest size;
};

/// What makes a Qwen-VL sample out of a conversation and the sizes of its media, read from a checkpoint folder.
/// Immutable. Threads: any.
class QwenVl {
 public:
  /// The family is the folder's own. @return MODEL_FOLDER, TOKENIZER or TEMPLATE_UNKNOWN, naming file and field.
  static Result<std::shared_ptr<const QwenVl>> load(const std::filesystem::path& folder, const Profile& profile,
                                                    const TextOptions& options = {});

  /// Writes the row's boxes into its texts, as write_boxes, in the family's units. @return BOX_PLACE.
  Status write_boxes(std::span<const BoxPicture> pictures, Sample& sample,
                     std::vector<std::string>* written = nullptr) const {
    return qwen_vl::write_boxes(family_.box_units, box_form_, pictures, sample, written);
  }

  /// Renders, tokenises and labels. Trained of a turn: its content, tool calls included, and of its end what the rule
  /// says. The header's own line feed is not trained, unless it fused with the content's first ones into one token,
  /// which carries content.
  /// The times of listed clips are written into the text where the family has them there.
  /// @return ROW_SCHEMA; ROLE_UNKNOWN, TURN_ORDER or TEMPLATE_DROPS if the template leaves something out and the
  ///         profile does not allow that; TURN_ORDER or TEMPLATE_FAILED from the template itself; TEMPLATE_DIFFERS;
  ///         MEDIA_COUNT if the template shows another number of images or clips than the row has; MEDIA_UNSUPPORTED
  ///         for a clip that is no list of pictures; NO_LOSS_TOKENS if no trained turn has a token before its end.
  /// @param sample  Without boxes. @param turns  Where each rendered turn lies, for people; may be null.
  Result<SampleText> encode(const Sample& sample, std::vector<TurnRange>* turns = nullptr) const;

  /// @param size     Upright, as the row or the header says.
  /// @param request  What the row asks for: limits in place of the processor's; a size in place of the picture's own,
  ///                 which goes through the same rule.
  /// @return IMG_ASPECT, IMG_SIZE.
  Result<ImagePlan> plan_image(SizePx size, const SizeRequest& request = {}) const;

  /// @return IMG_ASPECT, IMG_SIZE, CLIP_FRAMES.
  Result<ClipPlan> plan_clip(const ClipRequest& clip) const;
  /// Video pads that stand for a clip before they are expanded.
  std::int32_t clip_pads(std::int64_t n_frames) const;
  /// When the frames of a list were taken, as the profile's reference is told.
  ClipTimes times_of(std::int64_t n_frames, double frames_per_s, double source_frames_per_s) const;

  /// What every pack of this model has in common; without contents.
  PackShape empty_shape() const;
  /// The segment that takes the place of what a pack lacks or lost: labels -100, sample_ids -1. With an image, a clip
  /// or both, of one merged token each (white), if the pack would otherwise lack a vision call that its plan promised.
  PackShape dummy_shape(bool with_image, bool with_clip) const;
  /// @param at     The segment's extent; @param stride  T of the pack.
  void write_dummy(const PackView& view, const SampleExtent& at, std::int64_t stride) const;
  /// Writes what only fills up a sample's extent, its last `n_pad` tokens. @param next  Where its positions go on.
  void write_padding(const PackView& view, const SampleExtent& at, NextPosition next, std::int64_t stride) const;
  /// Writes what lies behind the last sample, as one segment whose positions begin at 0.
  void write_tail(const PackView& view, const PackShape& shape) const;

  const Family& family() const { return family_; }
  const ProcessorConfig& config() const { return config_.image; }
  const ClipConfig& clip_config() const { return config_.clip; }
  /// What tokens and patches cost; nothing if the folder does not say how large the model is.
  const std::optional<CostModel>& cost() const { return config_.cost; }
  Expansion expansion() const;
  /// Where a sample's token arrays begin. @param token  Of the pack. @param stride  T of the pack.
  TokenSlots slots(const PackView& view, std::int64_t token, std::int64_t stride) const;
  /// Whether packs have an array of weights beside their labels.
  bool has_loss_weights() const { return labels_.weights == LossWeights::kDeliver; }
  const Profile& profile() const { return profile_; }
  std::int32_t image_pad() const { return image_pad_; }
  std::int32_t video_pad() const { return video_pad_; }
  /// Over the tokenizer, the template, the processor's config and the profile: part of a run's fingerprint.
  const std::string& fingerprint() const { return fingerprint_; }
  const text::Tokenizer& tokenizer() const { return *tokenizer_; }
  const text::ChatTemplate& chat_template() const { return template_; }

 private:
  QwenVl(const Family& family, FolderConfig config, std::shared_ptr<const text::Tokenizer> tokenizer,
         text::ChatTemplate chat_template, const Profile& profile, const TextOptions& options);
  SampleText dummy_text(bool with_image, bool with_clip) const;
  /// The times of each clip of a sample, as the text has them. @return MEDIA_UNSUPPORTED.
  Result<std::vector<std::vector<std::string>>> clip_times(const Sample& sample) const;
  Status check_media(const Sample& sample, const SampleText& text) const;
  std::int32_t grid_t_of(std::int64_t n_frames) const;

  const Family& family_;
  const FolderConfig config_;
  const std::shared_ptr<const text::Tokenizer> tokenizer_;
  const text::ChatTemplate template_;
  const Profile profile_;
  const LabelRule labels_;
  const BoxForm box_form_;
  std::int32_t image_pad_ = 0, video_pad_ = 0, vision_pad_ = 0, vision_start_ = 0, vision_end_ = 0, turn_end_ = 0,
               end_of_text_ = 0, line_feed_ = 0;
  std::string fingerprint_;
};

}  // namespace stoker::qwen_vl

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
#include "model/qwen_vl/expand.h"
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
  text::TurnRendererFactory make_renderer = {};  ///< for templates that are not rendered natively
};

/// What makes a Qwen-VL sample out of a conversation and the sizes of its images, read from a checkpoint folder.
/// Immutable. Threads: any.
class QwenVl {
 public:
  /// @return MODEL_FOLDER, TOKENIZER or TEMPLATE_UNKNOWN, naming file and field.
  static Result<std::shared_ptr<const QwenVl>> load(const std::filesystem::path& folder, const Profile& profile,
                                                    const TextOptions& options = {});

  /// Renders, tokenises and labels. Trained of a turn: its content, tool calls included, and of its end what the rule
  /// says. The header's own line feed is not trained, unless it fused with the content's first ones into one token,
  /// which carries content.
  /// @return ROW_SCHEMA; ROLE_UNKNOWN, TURN_ORDER or TEMPLATE_DROPS if the template leaves something out and the
  ///         profile does not allow that; TURN_ORDER or TEMPLATE_FAILED from the template itself; TEMPLATE_DIFFERS;
  ///         MEDIA_COUNT if the template shows another number of images than the row has; NO_LOSS_TOKENS if no trained
  ///         turn has a token before its end.
  /// @param turns  Where each rendered turn lies, for people; may be null.
  Result<SampleText> encode(const Sample& sample, std::vector<TurnRange>* turns = nullptr) const;

  /// @param size  Upright, as the row or the header says.
  /// @return IMG_ASPECT.
  Result<ImagePlan> plan_image(SizePx size) const;

  /// The segment that takes the place of what went bad: labels -100, sample_ids -1. With an image of one merged token
  /// (white) if the pack would otherwise lose the vision call that its plan promised. Its shape, then its writing at
  /// the end of a pack.
  PackShape dummy_shape(bool with_image) const;
  /// @param at     The segment's extent; @param stride  T of the pack.
  void write_dummy(const PackView& view, const SampleExtent& at, std::int64_t stride) const;

  const ProcessorConfig& config() const { return config_; }
  const Profile& profile() const { return profile_; }
  std::int32_t image_pad() const { return image_pad_; }
  /// Over the tokenizer, the template, the processor's config and the profile: part of a run's fingerprint.
  const std::string& fingerprint() const { return fingerprint_; }
  const text::Tokenizer& tokenizer() const { return *tokenizer_; }
  const text::ChatTemplate& chat_template() const { return template_; }

 private:
  QwenVl(ProcessorConfig config, std::shared_ptr<const text::Tokenizer> tokenizer, text::ChatTemplate chat_template,
         const Profile& profile, const LabelRule& labels);
  SampleText dummy_text(bool with_image) const;

  const ProcessorConfig config_;
  const std::shared_ptr<const text::Tokenizer> tokenizer_;
  const text::ChatTemplate template_;
  const Profile profile_;
  const LabelRule labels_;
  std::int32_t image_pad_ = 0, video_pad_ = 0, vision_pad_ = 0, vision_start_ = 0, vision_end_ = 0, turn_end_ = 0,
               end_of_text_ = 0, line_feed_ = 0;
  std::string fingerprint_;
};

}  // namespace stoker::qwen_vl

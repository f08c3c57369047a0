#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "data/sample.h"
#include "text/utf8.h"

namespace stoker::text {

struct RenderOptions {
  bool add_generation_prompt = false;
  bool add_vision_id = false;  ///< "Picture 1: " and "Video 1: " before media, each kind counted over the conversation
};

/// A stretch of the rendered conversation that begins with <|im_start|> and reaches to the next one that the template
/// wrote. As added tokens cut text, the chunks' ids one after another are the ids of the whole.
struct RenderedTurn {
  static constexpr std::uint32_t kNoTurn = std::numeric_limits<std::uint32_t>::max();

  std::string text;
  std::vector<ByteSpan>
      content;  ///< what comes from the row, sorted and apart: the literal ranges of Tokenizer::encode
  std::vector<std::uint32_t>
      media;                  ///< indices into Sample::media, one per pad token that the template wrote, in its order
  bool is_assistant = false;  ///< an answer; false for the generation prompt
  std::uint32_t turn = kNoTurn;  ///< index of the first turn in it; kNoTurn if the template made it up
};

/// A chat template that is rendered natively, known by the SHA-256 of its text. Immutable. Threads: any.
class ChatTemplate {
 public:
  /// Finds the template where the reference looks: `model` is a template file, or a checkpoint folder with
  /// chat_template.jinja, else "chat_template" in chat_template.json, else in tokenizer_config.json.
  /// @return kModelFolder if there is none; kTemplateUnknown, naming file and hash, if it is another one.
  static Result<ChatTemplate> load(const std::filesystem::path& model);
  /// From a template's text; `name` stands for its place in messages.
  static Result<ChatTemplate> from_text(std::string_view text, std::string_view name);

  /// Renders a conversation, character for character as the template does. What the template drops is dropped: system
  /// turns after the first place, media in system and assistant turns. Whoever cares compares `media` with the sample.
  /// @return kRowSchema for a sample without turns.
  Result<std::vector<RenderedTurn>> render(const Sample& sample, RenderOptions options) const;

  /// SHA-256 of the template's text.
  const std::string& fingerprint() const { return fingerprint_; }

 private:
  explicit ChatTemplate(std::string fingerprint) : fingerprint_(std::move(fingerprint)) {}

  std::string fingerprint_;
};

}  // namespace stoker::text

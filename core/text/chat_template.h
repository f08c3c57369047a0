#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "data/sample.h"
#include "text/turn_renderer.h"
#include "text/utf8.h"

namespace stoker::text {

struct NativeTemplate;

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
      media;                 ///< indices into Sample::media, one per pad token that the template wrote, in its order
  std::optional<Role> role;  ///< absent: text before the first turn, or a role that is none of ours
  std::size_t header_bytes = 0;  ///< of <|im_start|> and the printed role; 0 without a role
  bool is_assistant = false;     ///< an answer; false for the generation prompt
  std::uint32_t turn = kNoTurn;  ///< index of the first turn in it; kNoTurn if the template made it up
  std::uint32_t n_turns = 0;     ///< turns of the row in it: neighbouring tool turns may share a chunk
  std::size_t end_bytes = 0;     ///< where the turn's own <|im_end|> ends, 0 without one; a line feed follows
  bool is_cut = false;           ///< rendered elsewhere and cut at its turn tokens
};

/// "system", "user", "assistant", "tool", "developer": as templates print them.
std::string_view name_of(Role role);
std::optional<Role> role_named(std::string_view name);

/// A rendered conversation.
struct Rendered {
  std::vector<RenderedTurn> chunks = {};
  /// The first thing of the row that the template shows nowhere (TURN_ORDER, ROLE_UNKNOWN, TEMPLATE_DROPS); ok if there
  /// is none. Known of native templates only.
  Status left_out = {};

  std::string text() const;
};

/// Who renders: native if the template is known, else jinja2; one of them always; or both, and they must agree.
enum class TemplateEngine : std::uint8_t { kAuto, kNative, kJinja, kCheck };

/// A checkpoint's chat template: rendered natively if its text's SHA-256 is known, else by a `TurnRenderer`.
/// Immutable. Threads: any.
class ChatTemplate {
 public:
  /// Finds the template where the reference looks: `model` is a template file, or a checkpoint folder with
  /// chat_template.jinja, else "chat_template" in chat_template.json, else in tokenizer_config.json.
  /// @param make_renderer  Called for kJinja, kCheck, and kAuto with an unknown template; may be empty.
  /// @return kModelFolder if there is none; kTemplateUnknown, naming file and hash, if nobody can render it.
  static Result<ChatTemplate> load(const std::filesystem::path& model, TemplateEngine engine = TemplateEngine::kAuto,
                                   const TurnRendererFactory& make_renderer = {});
  /// From a template's text; `name` stands for its place in messages, `folder` is passed on to `make_renderer`.
  static Result<ChatTemplate> from_text(std::string_view text, std::string_view name,
                                        TemplateEngine engine = TemplateEngine::kAuto,
                                        const TurnRendererFactory& make_renderer = {},
                                        const std::filesystem::path& folder = {});

  /// Renders a conversation, character for character as the template does. What the template drops is dropped.
  /// Whoever cares looks at `left_out` and compares `media` with the sample.
  /// @return kRowSchema for a sample without turns; kTurnOrder or kTemplateFailed if the template refuses it;
  ///         kTemplateDiffers, with the first difference, if both render and they do not agree.
  Result<Rendered> render(const Sample& sample, RenderOptions options) const;

  /// SHA-256 of the template's text.
  const std::string& fingerprint() const { return fingerprint_; }
  bool is_native() const { return native_ != nullptr; }
  /// Whether render() calls out of the engine.
  bool has_renderer() const { return renderer_ != nullptr; }

 private:
  ChatTemplate() = default;

  std::string fingerprint_;
  const NativeTemplate* native_ = nullptr;                  // null: not known, or not wanted
  std::shared_ptr<const TurnRenderer> renderer_ = nullptr;  // null: not needed
};

}  // namespace stoker::text

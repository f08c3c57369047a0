#include "text/chat_template.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <fstream>
#include <optional>
#include <sstream>
#include <utility>

#include "base/hash.h"

namespace stoker::text {
namespace {

/// The template of the Qwen3-VL Instruct checkpoints, 5,292 bytes.
constexpr std::string_view kQwen3Vl = "3636d0f0bd6bef02654cdffdc447b79cb2cef8ab02cc75267345946291a489e4";

constexpr std::string_view kToolsIntroduction =
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>";
constexpr std::string_view kToolsInstructions =
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    "<tool_call></tool_call> XML tags:\n<tool_call>\n"
    "{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call><|im_end|>\n";

/// Writes one conversation. Follows the template's branches in its order.
class Qwen3VlRenderer {
 public:
  Qwen3VlRenderer(const Sample& sample, RenderOptions options) : sample_(sample), options_(options) {}

  std::vector<RenderedTurn> render() && {
    write_head();
    for (std::size_t i = 0; i < sample_.turns.size(); ++i) {
      switch (sample_.turns[i].role) {
        case Role::kUser:
          write_user(i);
          break;
        case Role::kAssistant:
          write_assistant(i);
          break;
        case Role::kTool:
          write_tool(i);
          break;
        case Role::kSystem:  // the first is in the head; later ones are not rendered
        case Role::kDeveloper:
          break;
      }
    }
    if (options_.add_generation_prompt) begin("assistant\n", RenderedTurn::kNoTurn);
    return std::move(chunks_);
  }

 private:
  void begin(std::string_view header, std::size_t turn) {
    chunks_.emplace_back();
    chunks_.back().turn = static_cast<std::uint32_t>(turn);
    write("<|im_start|>");
    write(header);
  }
  void write(std::string_view text) { chunks_.back().text.append(text); }
  void write_from_row(std::string_view text) {
    if (text.empty()) return;
    auto& [whole, content, media, is_assistant, turn] = chunks_.back();
    if (!content.empty() && content.back().end == whole.size()) {
      content.back().end += text.size();
    } else {
      content.push_back({whole.size(), whole.size() + text.size()});
    }
    whole.append(text);
  }

  void write_head() {
    const Turn& first = sample_.turns.front();
    const bool is_system = first.role == Role::kSystem;
    if (!is_system && sample_.tools.empty()) return;
    begin("system\n", is_system ? 0 : RenderedTurn::kNoTurn);
    if (is_system) write_texts(first);
    if (sample_.tools.empty()) {
      write("<|im_end|>\n");
      return;
    }
    if (is_system) write("\n\n");
    write(kToolsIntroduction);
    for (const std::string& tool : sample_.tools) {
      write("\n");
      write_from_row(tool);
    }
    write(kToolsInstructions);
  }

  void write_texts(const Turn& turn) {
    for (const Part& part : turn.parts) {
      if (part.kind == Part::Kind::kText) write_from_row(part.text);
    }
  }

  void write_parts(const Turn& turn) {
    for (const Part& part : turn.parts) {
      if (part.kind == Part::Kind::kText) {
        write_from_row(part.text);
        continue;
      }
      const bool is_image = part.kind == Part::Kind::kImage;
      const int number = is_image ? ++n_images_ : ++n_videos_;
      if (options_.add_vision_id) write(fmt::format("{} {}: ", is_image ? "Picture" : "Video", number));
      write(is_image ? "<|vision_start|><|image_pad|><|vision_end|>" : "<|vision_start|><|video_pad|><|vision_end|>");
      chunks_.back().media.push_back(part.media);
    }
  }

  void write_user(std::size_t i) {
    begin("user\n", i);
    write_parts(sample_.turns[i]);
    write("<|im_end|>\n");
  }

  void write_assistant(std::size_t i) {
    const Turn& turn = sample_.turns[i];
    begin("assistant\n", i);
    chunks_.back().is_assistant = true;
    write_texts(turn);
    bool needs_line_feed = turn.has_content;
    for (const ToolCall& call : turn.tool_calls) {
      if (needs_line_feed) write("\n");
      needs_line_feed = true;
      write("<tool_call>\n{\"name\": \"");
      write_from_row(call.name);
      write("\", \"arguments\": ");
      write_from_row(call.arguments);
      write("}\n</tool_call>");
    }
    write("<|im_end|>\n");
  }

  /// Neighbouring tool turns share one user chunk.
  void write_tool(std::size_t i) {
    const auto is_tool = [this](std::size_t at) { return sample_.turns[at].role == Role::kTool; };
    if (i == 0 || !is_tool(i - 1)) begin("user", i);
    write("\n<tool_response>\n");
    write_parts(sample_.turns[i]);
    write("\n</tool_response>");
    if (i + 1 == sample_.turns.size() || !is_tool(i + 1)) write("<|im_end|>\n");
  }

  const Sample& sample_;
  const RenderOptions options_;
  std::vector<RenderedTurn> chunks_;
  int n_images_ = 0, n_videos_ = 0;
};

std::optional<std::string> read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  if (!file || !(content << file.rdbuf())) return std::nullopt;
  return std::move(content).str();
}

/// The value of "chat_template": a string, or in a list of named ones the one called "default".
std::optional<std::string> template_in(const std::string& json) {
  simdjson::dom::parser parser;
  simdjson::dom::element found;
  std::string_view text;
  if (parser.parse(json)["chat_template"].get(found)) return std::nullopt;
  if (!found.get(text)) return std::string(text);
  simdjson::dom::array named;
  if (found.get(named)) return std::nullopt;
  for (const simdjson::dom::element one : named) {
    std::string_view name;
    if (!one["name"].get(name) && name == "default" && !one["template"].get(text)) return std::string(text);
  }
  return std::nullopt;
}

}  // namespace

Result<ChatTemplate> ChatTemplate::load(const std::filesystem::path& model) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(model, ignored)) {
    const auto text = read_file(model);
    if (!text) return Status(Reason::kModelFolder, "cannot read " + model.string());
    return from_text(*text, model.string());
  }
  const auto jinja = model / "chat_template.jinja";
  if (const auto text = read_file(jinja)) return from_text(*text, jinja.string());
  for (const char* const name : {"chat_template.json", "tokenizer_config.json"}) {
    const auto json = read_file(model / name);
    if (!json) continue;
    if (const auto text = template_in(*json)) return from_text(*text, (model / name).string());
  }
  return Status(Reason::kModelFolder,
                "no chat template in " + model.string() +
                    ": neither chat_template.jinja nor \"chat_template\" in chat_template.json or "
                    "tokenizer_config.json");
}

Result<ChatTemplate> ChatTemplate::from_text(std::string_view text, std::string_view name) {
  std::string fingerprint = sha256_hex(text);
  if (fingerprint != kQwen3Vl) {
    return Status(
        Reason::kTemplateUnknown,
        fmt::format("{}: the template with SHA-256 {} is not known; rendered natively: Qwen3-VL Instruct ({})", name,
                    fingerprint, kQwen3Vl));
  }
  return ChatTemplate(std::move(fingerprint));
}

Result<std::vector<RenderedTurn>> ChatTemplate::render(const Sample& sample, RenderOptions options) const {
  if (sample.turns.empty()) return Status(Reason::kRowSchema, "the conversation has no turn");
  return Qwen3VlRenderer(sample, options).render();
}

}  // namespace stoker::text

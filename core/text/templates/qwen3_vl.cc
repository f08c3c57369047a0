#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "text/templates/native_template.h"

namespace stoker::text {
namespace {

constexpr std::string_view kToolsIntroduction =
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>";
constexpr std::string_view kToolsInstructions =
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    "<tool_call></tool_call> XML tags:\n<tool_call>\n"
    "{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>";

/// Writes one conversation. Follows the template's branches in its order.
class Qwen3VlRenderer {
 public:
  Qwen3VlRenderer(const Sample& sample, RenderOptions options) : sample_(sample), options_(options), out_(options) {}

  Rendered render() && {
    write_head();
    for (std::size_t i = 0; i < sample_.turns.size(); ++i) write_turn(i);
    if (options_.add_generation_prompt) begin(Role::kAssistant, "assistant", RenderedTurn::kNoTurn);
    return std::move(out_).take();
  }

 private:
  void begin(Role role, std::string_view name, std::size_t turn) {
    out_.begin(role, name, turn);
    out_.write("\n");
  }

  void write_head() {
    const Turn& first = sample_.turns.front();
    const bool is_system = first.role == Role::kSystem;
    if (!is_system && sample_.tools.empty()) return;
    begin(Role::kSystem, "system", is_system ? 0 : RenderedTurn::kNoTurn);
    if (is_system) out_.write_texts(first);
    if (sample_.tools.empty()) {
      out_.end();
      return;
    }
    if (is_system) out_.write("\n\n");
    out_.write(kToolsIntroduction);
    for (const std::string& tool : sample_.tools) {
      out_.write("\n");
      out_.write_from_row(tool);
    }
    out_.write(kToolsInstructions);
    out_.end();
  }

  void write_turn(std::size_t i) {
    const Turn& turn = sample_.turns[i];
    switch (turn.role) {
      case Role::kUser:
        begin(Role::kUser, "user", i);
        out_.write_parts(turn);
        out_.end();
        break;
      case Role::kAssistant:
        write_assistant(i);
        break;
      case Role::kTool:
        write_tool(i);
        break;
      case Role::kSystem:  // the first is in the head
        if (i > 0) {
          out_.leave_out(Reason::kTurnOrder,
                         fmt::format("turn {} is a system turn, and this model's chat template shows only one in the "
                                     "first place",
                                     i + 1));
        }
        break;
      case Role::kDeveloper:
        out_.leave_out(Reason::kRoleUnknown,
                       fmt::format("turn {} has the role 'developer', which this model's chat template leaves out: "
                                   "make it a system or a user turn",
                                   i + 1));
        break;
    }
  }

  void write_assistant(std::size_t i) {
    const Turn& turn = sample_.turns[i];
    begin(Role::kAssistant, "assistant", i);
    out_.mark_answer();
    out_.write_texts(turn);
    bool needs_line_feed = turn.has_content;
    for (const ToolCall& call : turn.tool_calls) {
      if (needs_line_feed) out_.write("\n");
      needs_line_feed = true;
      out_.write("<tool_call>\n{\"name\": \"");
      out_.write_from_row(call.name);
      out_.write("\", \"arguments\": ");
      out_.write_from_row(call.arguments);
      out_.write("}\n</tool_call>");
    }
    out_.end();
  }

  /// Neighbouring tool turns share one user chunk.
  void write_tool(std::size_t i) {
    const auto is_tool = [this](std::size_t at) { return sample_.turns[at].role == Role::kTool; };
    if (i == 0 || !is_tool(i - 1)) {
      out_.begin(Role::kTool, "user", i);
    } else {
      out_.count_turn();
    }
    out_.write("\n<tool_response>\n");
    out_.write_parts(sample_.turns[i]);
    out_.write("\n</tool_response>");
    if (i + 1 == sample_.turns.size() || !is_tool(i + 1)) out_.end();
  }

  const Sample& sample_;
  const RenderOptions options_;
  ChunkWriter out_;
};

}  // namespace

Rendered render_qwen3_vl(const Sample& sample, RenderOptions options) {
  return Qwen3VlRenderer(sample, options).render();
}

}  // namespace stoker::text

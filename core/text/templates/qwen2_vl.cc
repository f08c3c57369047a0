#include <fmt/format.h>

#include <utility>

#include "text/templates/native_template.h"

namespace stoker::text {
namespace {

Rendered render(const Sample& sample, RenderOptions options, bool has_default_system) {
  ChunkWriter out(options);
  if (!sample.tools.empty()) {
    out.leave_out(Reason::kTemplateDrops,
                  "the row has tools, and this model's chat template has no place for them: take them out of the row, "
                  "or describe them in its system prompt");
  }
  for (std::size_t i = 0; i < sample.turns.size(); ++i) {
    const Turn& turn = sample.turns[i];
    if (has_default_system && i == 0 && turn.role != Role::kSystem) {
      out.begin(Role::kSystem, "system", RenderedTurn::kNoTurn);
      out.write("\nYou are a helpful assistant.");
      out.end();
    }
    out.begin(turn.role, name_of(turn.role), i);  // printed as the row has it
    if (turn.role == Role::kAssistant) out.mark_answer();
    out.write("\n");
    out.write_parts(turn);
    out.end();
    if (!turn.tool_calls.empty()) {
      out.leave_out(Reason::kTemplateDrops,
                    fmt::format("turn {} has tool calls, and this model's chat template has no place for them: write "
                                "them into its content",
                                i + 1));
    }
  }
  if (options.add_generation_prompt) {
    out.begin(Role::kAssistant, "assistant", RenderedTurn::kNoTurn);
    out.write("\n");
  }
  return std::move(out).take();
}

}  // namespace

Rendered render_qwen2_vl(const Sample& sample, RenderOptions options) { return render(sample, options, true); }

Rendered render_qwen2_vl_without_system(const Sample& sample, RenderOptions options) {
  return render(sample, options, false);
}

}  // namespace stoker::text

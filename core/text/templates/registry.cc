#include <algorithm>
#include <array>

#include "text/templates/native_template.h"

namespace stoker::text {
namespace {

constexpr std::array<NativeTemplate, 3> kTemplates = {{
    {"3636d0f0bd6bef02654cdffdc447b79cb2cef8ab02cc75267345946291a489e4", "Qwen3-VL Instruct", render_qwen3_vl},
    {"a0bc6f6fc7a29a80017a433e8f03a1cc1236e838a944a2d034295a60c4f2fddb", "Qwen2-VL and Qwen2.5-VL Instruct",
     render_qwen2_vl},
    // Fine-tuned checkpoints carry this one.
    {"b17137645c544af2d4558d36a6723777b736b4045bda225eeedf90595cc774ed", "Qwen2-VL without a default system prompt",
     render_qwen2_vl_without_system},
}};

}  // namespace

std::span<const NativeTemplate> native_templates() { return kTemplates; }

const NativeTemplate* find_native_template(std::string_view sha256) {
  const auto found = std::find_if(kTemplates.begin(), kTemplates.end(),
                                  [&](const NativeTemplate& one) { return one.sha256 == sha256; });
  return found == kTemplates.end() ? nullptr : found;
}

}  // namespace stoker::text

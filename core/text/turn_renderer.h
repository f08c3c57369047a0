#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"

namespace stoker::text {

/// Renders conversations with a template that the engine does not know; jinja2 behind Python, or a fake in tests.
/// Threads: render() from any, several at once.
class TurnRenderer {
 public:
  TurnRenderer() = default;
  virtual ~TurnRenderer() = default;
  TurnRenderer(const TurnRenderer&) = delete;
  TurnRenderer& operator=(const TurnRenderer&) = delete;

  /// @param request  A JSON object: `messages` with `role`, `content` (a string, or a list of {"type": "text" | "image"
  /// |
  ///                 "video"} parts) and, in answers, `tool_calls` ({"type": "function", "function": {"name",
  ///                 "arguments"}}, the arguments as text); `tools`, a list or null; `add_generation_prompt`;
  ///                 `add_vision_id`. Valid UTF-8.
  /// @return The text as the template writes it; TURN_ORDER if the template raises an exception of its own,
  ///         TEMPLATE_FAILED for any other failure.
  virtual Result<std::string> render(std::string_view request) const = 0;
};

/// Makes a renderer for a template's text. `folder`: the checkpoint, for the names of its special tokens.
using TurnRendererFactory = std::function<Result<std::shared_ptr<const TurnRenderer>>(
    std::string_view template_text, const std::filesystem::path& folder)>;

}  // namespace stoker::text

#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/result.h"
#include "data/sample.h"
#include "text/chat_template.h"

namespace stoker::text {

/// Writes the chunks of one rendered conversation and keeps track of what comes from the row. One per conversation.
class ChunkWriter {
 public:
  explicit ChunkWriter(RenderOptions options) : options_(options) {}

  /// Begins a chunk with <|im_start|> and `role`, which is also its role in `RenderedTurn`.
  void begin(Role role, std::string_view name, std::size_t turn);
  /// Marks the open chunk as an answer.
  void mark_answer() { out_.chunks.back().is_assistant = true; }
  /// Writes <|im_end|> and a line feed.
  void end();
  /// The open chunk shows one more turn of the row.
  void count_turn() { ++out_.chunks.back().n_turns; }

  /// The template's own words.
  void write(std::string_view text) { out_.chunks.back().text.append(text); }
  void write_from_row(std::string_view text);
  /// Text parts only.
  void write_texts(const Turn& turn);
  /// Texts and media, these as `<|vision_start|>`, pad, `<|vision_end|>`, numbered if asked for.
  void write_parts(const Turn& turn);

  /// Remembers the first thing that the template leaves out.
  void leave_out(Reason reason, std::string message);
  Rendered take() && { return std::move(out_); }

 private:
  const RenderOptions options_;
  Rendered out_;
  int n_images_ = 0, n_videos_ = 0;
};

/// A template that is rendered natively: its text's SHA-256, and the code that follows its branches in their order.
struct NativeTemplate {
  std::string_view sha256;
  std::string_view name;  ///< for messages: "Qwen3-VL Instruct"
  /// Character for character what the template writes. `sample` has at least one turn.
  Rendered (*render)(const Sample& sample, RenderOptions options);
};

/// All of them; a new one is a file in this folder, a line in registry.cc, and its text in the tests' data.
std::span<const NativeTemplate> native_templates();
const NativeTemplate* find_native_template(std::string_view sha256);

Rendered render_qwen2_vl(const Sample& sample, RenderOptions options);
Rendered render_qwen2_vl_without_system(const Sample& sample, RenderOptions options);
Rendered render_qwen3_vl(const Sample& sample, RenderOptions options);

}  // namespace stoker::text

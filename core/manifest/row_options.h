#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "manifest/json.h"

namespace stoker {

/// How a row spells a conversation; docs/data.md has an example of each.
enum class RowShape : std::uint8_t {
  kAuto,              ///< decided row by row, by the keys alone
  kMessages,          ///< messages: [{role, content}]
  kConversations,     ///< conversations: [{from, value}]
  kPromptCompletion,  ///< prompt and completion: strings or lists of messages
  kQueryResponse,     ///< query and response, with history
  kInstruction,       ///< instruction, input and output, with history
};
/// "auto", "messages", "conversations", "prompt-completion", "query-response", "instruction".
std::string_view name_of(RowShape shape);
std::optional<RowShape> row_shape_named(std::string_view name);

/// What the word for a role means. The content of a tool call turn is the assistant's call, as JSON text.
enum class RowRole : std::uint8_t { kSystem, kUser, kAssistant, kTool, kDeveloper, kToolCall };
/// "system", "user", "assistant", "tool", "developer", "tool_call".
std::optional<RowRole> row_role_named(std::string_view name);

/// How rows are read: part of what comes out. Plain values; `check_row_options` says whether they fit.
struct RowOptions {
  JsonOptions json = {};
  RowShape shape = RowShape::kAuto;
  /// The engine's name of a key -> the rows' own: {"messages", "dialog"}, {"role", "speaker"}, {"images", "pics"}.
  std::vector<std::pair<std::string, std::string>> columns = {};
  /// Words for roles beside the built-in ones, or in place of them: {"bot", kAssistant}.
  std::vector<std::pair<std::string, RowRole>> roles = {};
};

/// @return SETTINGS for a column that the engine does not read (the message lists those it does), a name given twice,
/// or an empty one.
Status check_row_options(const RowOptions& options);

/// From the words of a settings file. @return SETTINGS as `check_row_options`, or for a word that is none.
Result<RowOptions> make_row_options(std::string_view shape, std::vector<std::pair<std::string, std::string>> columns,
                                    const std::vector<std::pair<std::string, std::string>>& roles,
                                    bool nonfinite_is_null);

/// One line that is the same for options that read every row alike; for fingerprints.
std::string describe(const RowOptions& options);

}  // namespace stoker

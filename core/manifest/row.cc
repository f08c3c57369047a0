#include "manifest/row.h"

#include <array>
#include <utility>

#include <fmt/format.h>

#include "manifest/json_text.h"
#include "manifest/row_boxes.h"
#include "manifest/row_keys.h"
#include "manifest/row_media.h"
#include "manifest/row_turns.h"

namespace stoker {
namespace {

// The keys that make a row one of a shape: all of them must be there.
struct ShapeKeys {
  RowShape shape;
  std::string_view first;
  std::string_view second;  // empty: none
};
constexpr std::array<ShapeKeys, 5> kShapeKeys = {{{RowShape::kMessages, "messages", ""},
                                                  {RowShape::kConversations, "conversations", ""},
                                                  {RowShape::kPromptCompletion, "prompt", "completion"},
                                                  {RowShape::kQueryResponse, "query", "response"},
                                                  {RowShape::kInstruction, "instruction", "output"}}};

class RowReader {
 public:
  RowReader(const RowOptions& options, RowNotes& notes)
      : options_(options),
        notes_(notes),
        media_(sample_, notes.text_replaced),
        boxes_(sample_),
        turns_(options, sample_, media_, boxes_, notes.text_replaced) {}

  Result<Sample> read(const JsonView& root) {
    if (!root.is_object()) return row_schema(root, "a row must be an object, not {}", root.type_name());
    const auto spelling = renamed(kRowKeys, options_);
    STOKER_TRY(const RowFields row, RowFields::of(root, kRowKeys, spelling));
    STOKER_TRY(notes_.row_shape, shape_of(root, row));
    if (const JsonView id = row["id"]) notes_.id = id.is_string() ? id.string() : std::string(id.raw());
    STOKER_CHECKED(media_.read_lists(row));
    STOKER_CHECKED(boxes_.read(row["objects"], notes_.text_replaced));
    STOKER_CHECKED(read_tools(row["tools"]));
    STOKER_CHECKED(read_system(row["system"]));
    STOKER_CHECKED(read_turns(row));
    STOKER_CHECKED(check_system());
    STOKER_CHECKED(media_.check_used_up());
    STOKER_CHECKED(boxes_.finish());
    return std::move(sample_);
  }

 private:
  static bool fits(const ShapeKeys& keys, const RowFields& row) {
    return row.has(keys.first) && (keys.second.empty() || row.has(keys.second));
  }

  Result<RowShape> shape_of(const JsonView& root, const RowFields& row) const {
    const ShapeKeys* found = nullptr;
    for (const ShapeKeys& keys : kShapeKeys) {
      if (options_.shape != RowShape::kAuto && keys.shape != options_.shape) continue;
      if (!fits(keys, row)) continue;
      if (found != nullptr) {
        return Status(
            Reason::kRowAmbiguous,
            fmt::format("the row has both '{}' and '{}'; data.shape says which to read", found->first, keys.first));
      }
      found = &keys;
    }
    if (found != nullptr) return found->shape;
    std::string keys;
    for (JsonView key = root.first(); key && keys.size() < 4 * kMaxShownBytes; key = key.next().next()) {
      keys += (keys.empty() ? "" : ", ") + shown(key.string());
    }
    if (keys.empty()) keys = "none";
    if (options_.shape != RowShape::kAuto) {
      return row_schema(root, "no row of the form {}; keys found: {}", name_of(options_.shape), keys);
    }
    return row_schema(root,
                      "neither 'messages' nor 'conversations', nor prompt and completion, query and response, "
                      "instruction and output; keys found: {}",
                      keys);
  }

  Status read_tools(const JsonView& tools) {
    if (!tools) return {};
    if (tools.is_string()) {  // some files keep the list as text
      const std::string text = tools.string(&notes_.text_replaced);
      if (text.find_first_not_of(" \t\r\n") == std::string::npos) return {};
      JsonDocument inner;
      if (Status parsed = inner.parse(text); !parsed.ok()) return std::move(parsed).with(tools.where() + ": 'tools'");
      if (!inner.root().is_array()) return row_schema(tools, "'tools' must hold a list");
      return read_tool_list(inner.root());
    }
    if (!tools.is_array()) return row_schema(tools, "'tools' must be a list, not {}", tools.type_name());
    return read_tool_list(tools);
  }

  Status read_tool_list(const JsonView& tools) {
    for (JsonView v = tools.first(); v; v = v.next()) {
      std::string text;
      STOKER_CHECKED(append_json_text(v, text, &notes_.text_replaced));
      sample_.tools.push_back(std::move(text));
    }
    return {};
  }

  // The system prompt beside the conversation.
  Status read_system(const JsonView& system) {
    if (!system) return {};
    if (!system.is_string()) return row_schema(system, "'system' must be a string, not {}", system.type_name());
    std::string text = system.string(&notes_.text_replaced);
    if (text.empty()) return {};
    Turn turn;
    turn.role = Role::kSystem;
    turn.has_content = true;
    Part part;
    part.text = std::move(text);
    turn.parts.push_back(std::move(part));
    sample_.turns.push_back(std::move(turn));
    has_system_ = true;
    return {};
  }

  Status check_system() const {
    if (!has_system_ || sample_.turns.size() < 2 || sample_.turns[1].role != Role::kSystem) return {};
    return Status(Reason::kRowAmbiguous, "the row has a 'system' and its conversation begins with another one");
  }

  Status read_turns(const RowFields& row) {
    switch (notes_.row_shape) {
      case RowShape::kMessages:
        return turns_.read_list(row["messages"], "the conversation");
      case RowShape::kConversations:
        return turns_.read_list(row["conversations"], "the conversation");
      case RowShape::kPromptCompletion:
        return read_prompt_completion(row["prompt"], row["completion"]);
      case RowShape::kQueryResponse:
        STOKER_CHECKED(read_history(row["history"]));
        STOKER_CHECKED(read_text(Role::kUser, row["query"], "'query'"));
        return read_text(Role::kAssistant, row["response"], "'response'");
      case RowShape::kInstruction:
        STOKER_CHECKED(read_history(row["history"]));
        STOKER_CHECKED(read_instruction(row["instruction"], row["input"]));
        return read_text(Role::kAssistant, row["output"], "'output'");
      case RowShape::kAuto:
        break;
    }
    return Status(Reason::kInternal, "a row without a shape");
  }

  Status read_text(Role role, const JsonView& text, std::string_view what) {
    if (!text.is_string()) return row_schema(text, "{} must be a string, not {}", what, text.type_name());
    return turns_.read_bare(role, text);
  }

  Status read_prompt_completion(const JsonView& prompt, const JsonView& completion) {
    const auto read_side = [&](const JsonView& side, Role role, std::string_view what) -> Status {
      if (side.is_string()) return turns_.read_bare(role, side);
      return turns_.read_list(side, what);
    };
    STOKER_CHECKED(read_side(prompt, Role::kUser, "'prompt'"));
    for (Turn& turn : sample_.turns) {
      if (!turn.loss_scale && turn.role == Role::kAssistant) turn.loss_scale = 0.0F;
    }
    const std::size_t n_before = sample_.turns.size();
    STOKER_CHECKED(read_side(completion, Role::kAssistant, "'completion'"));
    if (sample_.turns.size() == n_before) {
      return row_schema(completion, "the completion begins with a tool call that belongs to the prompt's last turn");
    }
    return {};
  }

  // Earlier rounds: [[question, answer], ...].
  Status read_history(const JsonView& history) {
    if (!history) return {};
    if (!history.is_array()) return row_schema(history, "'history' must be a list, not {}", history.type_name());
    for (JsonView round = history.first(); round; round = round.next()) {
      if (!round.is_array() || round.size() != 2) {
        return row_schema(round, "a round of 'history' must be a list of a question and its answer");
      }
      STOKER_CHECKED(read_text(Role::kUser, round.first(), "a question of 'history'"));
      STOKER_CHECKED(read_text(Role::kAssistant, round.first().next(), "an answer of 'history'"));
    }
    return {};
  }

  Status read_instruction(const JsonView& instruction, const JsonView& input) {
    for (const JsonView& text : {instruction, input}) {
      if (text && !text.is_string()) {
        return row_schema(text, "'instruction' and 'input' must be strings, not {}", text.type_name());
      }
    }
    std::string question = instruction.string(&notes_.text_replaced);
    const std::string more = input ? input.string(&notes_.text_replaced) : std::string();
    if (!question.empty() && !more.empty()) question += '\n';
    turns_.add_marked(Role::kUser, question + more);
    return {};
  }

  const RowOptions& options_;
  RowNotes& notes_;
  Sample sample_;
  bool has_system_ = false;
  RowMedia media_;
  RowBoxes boxes_;
  TurnReader turns_;
};

}  // namespace

Result<Sample> parse_row(std::string_view line, const RowOptions& options, RowNotes* notes) {
  thread_local JsonDocument document;
  RowNotes unread;
  RowNotes& said = notes != nullptr ? *notes : unread;
  said = {};
  STOKER_CHECKED(document.parse(line, options.json));
  return RowReader(options, said).read(document.root());
}

}  // namespace stoker

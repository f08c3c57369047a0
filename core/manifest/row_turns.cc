#include "manifest/row_turns.h"

#include <array>
#include <iterator>
#include <utility>

#include "manifest/json_text.h"

namespace stoker {
namespace {

constexpr KeyNames<11> kPartKeys = {"type",   "text",   "image", "image_url", "url",  "path",
                                    "source", "base64", "video", "video_url", "audio"};
constexpr double kLargestWeight = 1e6;
constexpr KeyNames<3> kCallKeys = {"function", "name", "arguments"};

constexpr std::array<std::pair<std::string_view, RowRole>, 13> kRoleWords = {{{"system", RowRole::kSystem},
                                                                              {"user", RowRole::kUser},
                                                                              {"human", RowRole::kUser},
                                                                              {"assistant", RowRole::kAssistant},
                                                                              {"gpt", RowRole::kAssistant},
                                                                              {"model", RowRole::kAssistant},
                                                                              {"tool", RowRole::kTool},
                                                                              {"function", RowRole::kTool},
                                                                              {"observation", RowRole::kTool},
                                                                              {"tool_response", RowRole::kTool},
                                                                              {"developer", RowRole::kDeveloper},
                                                                              {"function_call", RowRole::kToolCall},
                                                                              {"tool_call", RowRole::kToolCall}}};

Role role_of(RowRole role) {
  switch (role) {
    case RowRole::kSystem:
      return Role::kSystem;
    case RowRole::kUser:
      return Role::kUser;
    case RowRole::kTool:
      return Role::kTool;
    case RowRole::kDeveloper:
      return Role::kDeveloper;
    case RowRole::kAssistant:
    case RowRole::kToolCall:
      break;
  }
  return Role::kAssistant;
}

void add_text(std::string text, Turn& turn) {
  Part part;
  part.text = std::move(text);
  turn.parts.push_back(std::move(part));
}

// 0 none, 1 whole, others a weight; booleans as well.
Status read_scale(const JsonView& value, std::string_view key, std::optional<float>& out) {
  if (!value) return {};
  if (value.type() == JsonType::kTrue || value.type() == JsonType::kFalse) {
    out = value.type() == JsonType::kTrue ? 1.0F : 0.0F;
    return {};
  }
  if (!is_number(value)) return row_schema(value, "'{}' must be a number or a boolean, not {}", key, value.type_name());
  const double scale = number_of(value);
  out = static_cast<float>(scale);
  if (scale < 0 || scale > kLargestWeight || (scale > 0 && *out == 0.0F)) {
    return row_schema(value, "'{}' of {}; it takes 0, or a weight up to {} that a float32 can tell from 0", key,
                      shown(value.raw()), kLargestWeight);
  }
  return {};
}

}  // namespace

Result<RowRole> TurnReader::role_of(const JsonView& role) const {
  if (!role.is_string()) return row_schema(role, "a role must be a string, not {}", role.type_name());
  const std::string name = role.string();
  for (const auto& [word, meaning] : options_.roles) {
    if (name == word) return meaning;
  }
  for (const auto& [word, meaning] : kRoleWords) {
    if (name == word) return meaning;
  }
  return Status(Reason::kRoleUnknown,
                fmt::format("{}: role '{}'; data.roles can say what it means", role.where(), shown(name)));
}

Status TurnReader::read_list(const JsonView& turns, std::string_view what) {
  if (!turns.is_array()) return row_schema(turns, "{} must be a list, not {}", what, turns.type_name());
  if (!turns.first()) return row_schema(turns, "{} is empty", what);
  for (JsonView turn = turns.first(); turn; turn = turn.next()) STOKER_CHECKED(read(turn));
  return {};
}

Status TurnReader::read(const JsonView& value) {
  if (!value.is_object()) return row_schema(value, "a turn must be an object, not {}", value.type_name());
  STOKER_TRY(const auto fields, Fields<kTurnKeys.size()>::of(value, kTurnKeys, spelling_));
  const JsonView role = fields.any({"role", "from"});
  if ((fields.has("role") && fields.has("from")) || (fields.has("content") && fields.has("value"))) {
    return Status(Reason::kRowAmbiguous, value.where() + ": the turn has both 'role'/'content' and 'from'/'value'");
  }
  if (!role) return row_schema(value, "a turn without 'role' or 'from'");
  STOKER_TRY(const RowRole meaning, role_of(role));
  Turn turn;
  turn.role = stoker::role_of(meaning);
  STOKER_CHECKED(read_loss(fields, turn));
  const JsonView content = fields.any({"content", "value"});
  if (meaning == RowRole::kToolCall) {
    STOKER_CHECKED(read_call_text(content, turn));
    return add_call_turn(std::move(turn));
  }
  STOKER_CHECKED(read_content(content, turn));
  STOKER_CHECKED(read_tool_calls(fields["tool_calls"], turn));
  sample_.turns.push_back(std::move(turn));
  return {};
}

Status TurnReader::read_bare(Role role, const JsonView& content) {
  Turn turn;
  turn.role = role;
  STOKER_CHECKED(read_content(content, turn));
  sample_.turns.push_back(std::move(turn));
  return {};
}

void TurnReader::add_marked(Role role, std::string_view text) {
  Turn turn;
  turn.role = role;
  turn.has_content = !text.empty();
  read_marked_text(text, true, turn);
  sample_.turns.push_back(std::move(turn));
}

Status TurnReader::read_loss(const Fields<kTurnKeys.size()>& fields, Turn& turn) const {
  bool is_only_yes = false;  // `true` says that a turn is trained; a number may then say how much
  for (const std::string_view key : {"loss", "loss_scale", "weight"}) {
    std::optional<float> scale;
    STOKER_CHECKED(read_scale(fields[key], key, scale));
    if (!scale) continue;
    const bool is_yes = fields[key].type() == JsonType::kTrue;
    const bool agrees = !turn.loss_scale || *turn.loss_scale == *scale ||
                        ((is_only_yes || is_yes) && *turn.loss_scale > 0 && *scale > 0);
    if (!agrees) {
      return Status(Reason::kRowAmbiguous,
                    fields[key].where() + ": 'loss', 'loss_scale' and 'weight' of one turn contradict one another");
    }
    if (!turn.loss_scale || is_only_yes) {
      turn.loss_scale = scale;
      is_only_yes = is_yes;
    }
  }
  return {};
}

Status TurnReader::read_content(const JsonView& content, Turn& turn) {
  if (!content) return {};
  if (content.is_string()) {
    const std::string text = content.string(&n_replaced_);
    turn.has_content = !text.empty();
    read_marked_text(text, true, turn);
    return {};
  }
  if (!content.is_array()) {
    return row_schema(content, "content must be a string or a list of parts, not {}", content.type_name());
  }
  turn.has_content = static_cast<bool>(content.first());
  for (JsonView part = content.first(); part; part = part.next()) STOKER_CHECKED(read_part(part, turn));
  return {};
}

// Every mark is a placeholder, the rest stays as it is. Marks of boxes are marks only where the row has objects; those
// of media only in strings, not in the text of parts.
void TurnReader::read_marked_text(std::string_view text, bool has_media_marks, Turn& turn) {
  enum class Mark : std::uint8_t { kImage, kVideo, kBox, kName };
  constexpr std::array<std::pair<std::string_view, Mark>, 4> kMarks = {
      {{"<image>", Mark::kImage}, {"<video>", Mark::kVideo}, {"<bbox>", Mark::kBox}, {"<ref-object>", Mark::kName}}};
  const auto is_mark = [&](Mark mark) {
    return mark == Mark::kImage || mark == Mark::kVideo ? has_media_marks : boxes_.is_present();
  };
  std::size_t from = 0;  // where looking goes on
  while (true) {
    const std::size_t at = text.find('<', from);
    if (at == std::string_view::npos) break;
    const auto* found = kMarks.begin();
    while (found != kMarks.end() && !(is_mark(found->second) && text.substr(at).starts_with(found->first))) ++found;
    if (found == kMarks.end()) {
      from = at + 1;
      continue;
    }
    if (at > 0) add_text(std::string(text.substr(0, at)), turn);
    switch (found->second) {
      case Mark::kImage:
        media_.take_image({}, turn);
        break;
      case Mark::kVideo:
        media_.take_video({}, turn);
        break;
      case Mark::kBox:
        boxes_.take_place(turn);
        break;
      case Mark::kName:
        boxes_.take_name(turn);
        break;
    }
    text.remove_prefix(at + found->first.size());
    from = 0;
  }
  if (!text.empty()) add_text(std::string(text), turn);
}

// A part without 'type' is what its only content key says.
static Result<std::string> part_type(const JsonView& value, const Fields<kPartKeys.size()>& fields, bool has_image) {
  if (const JsonView type = fields["type"]) {
    if (!type.is_string()) return row_schema(type, "the type of a part must be a string, not {}", type.type_name());
    return type.string();
  }
  const bool has_video = fields.has("video");
  const bool has_audio = fields.has("audio");
  const bool has_text = fields.has("text");
  if (int{has_image} + int{has_video} + int{has_audio} + int{has_text} != 1) {
    return row_schema(value, "a part without 'type'");
  }
  return std::string(has_image ? "image" : has_video ? "video" : has_audio ? "audio" : "text");
}

Status TurnReader::read_part(const JsonView& value, Turn& turn) {
  if (!value.is_object()) return row_schema(value, "a part must be an object, not {}", value.type_name());
  STOKER_TRY(const auto fields, Fields<kPartKeys.size()>::of(value, kPartKeys));
  const JsonView image = fields.any({"image", "image_url", "url", "path", "source", "base64"});
  STOKER_TRY(const std::string type, part_type(value, fields, static_cast<bool>(image)));
  if (type == "text") {
    const JsonView text = fields["text"];
    if (!text) return row_schema(value, "a text part without 'text'");
    if (!text.is_string()) return row_schema(text, "'text' must be a string, not {}", text.type_name());
    if (fields.has("image") || fields.has("image_url") || fields.has("video") || fields.has("audio")) {
      return row_schema(value, "a text part that also has media");
    }
    const std::string content = text.string(&n_replaced_);
    if (boxes_.is_present()) {
      read_marked_text(content, false, turn);
    } else {
      add_text(content, turn);
    }
    return {};
  }
  if (type == "image" || type == "image_url") return media_.read_part(value, MediaKind::kImage, turn);
  if (type == "video" || type == "video_url") return media_.read_part(value, MediaKind::kVideo, turn);
  return Status(Reason::kPartType, fmt::format("{}: a part of type '{}'", value.where(), shown(type)));
}

Status TurnReader::read_tool_calls(const JsonView& calls, Turn& turn) {
  if (!calls || is_empty_list(calls)) return {};
  if (!calls.is_array()) return row_schema(calls, "'tool_calls' must be a list, not {}", calls.type_name());
  if (turn.role != Role::kAssistant) return row_schema(calls, "'tool_calls' in a turn that is not the assistant's");
  for (JsonView v = calls.first(); v; v = v.next()) STOKER_CHECKED(read_tool_call(v, turn));
  return {};
}

Status TurnReader::read_tool_call(const JsonView& value, Turn& turn) {
  if (!value.is_object()) return row_schema(value, "a tool call must be an object, not {}", value.type_name());
  STOKER_TRY(const auto outer, Fields<kCallKeys.size()>::of(value, kCallKeys));
  const JsonView body = outer["function"] ? outer["function"] : value;
  if (!body.is_object()) return row_schema(body, "'function' must be an object, not {}", body.type_name());
  STOKER_TRY(const auto call, Fields<kCallKeys.size()>::of(body, kCallKeys));
  const JsonView name = call["name"];
  const JsonView arguments = call["arguments"];
  if (!name || !name.is_string() || !arguments) return row_schema(body, "a tool call wants a 'name' and 'arguments'");
  ToolCall tool_call;
  tool_call.name = name.string(&n_replaced_);
  if (arguments.is_string()) {
    tool_call.arguments = arguments.string(&n_replaced_);
  } else {
    STOKER_CHECKED(append_json_text(arguments, tool_call.arguments, &n_replaced_));
  }
  turn.tool_calls.push_back(std::move(tool_call));
  return {};
}

// A turn of a role like 'function_call': its content is one call or a list of them, as JSON or as text that is JSON.
Status TurnReader::read_call_text(const JsonView& content, Turn& turn) {
  if (!content) return Status(Reason::kRowSchema, "a tool call turn without content");
  const auto read_calls = [&](const JsonView& calls) -> Status {
    if (!calls.is_array()) return read_tool_call(calls, turn);
    if (!calls.first()) return row_schema(calls, "an empty list of tool calls");
    for (JsonView v = calls.first(); v; v = v.next()) STOKER_CHECKED(read_tool_call(v, turn));
    return {};
  };
  if (!content.is_string()) return read_calls(content);
  const std::string text = content.string(&n_replaced_);
  JsonDocument inner;
  const std::string where = content.where() + ": the content of a tool call turn";
  if (Status parsed = inner.parse(text); !parsed.ok()) return std::move(parsed).with(where);
  if (Status read = read_calls(inner.root()); !read.ok()) return std::move(read).with(where);
  return {};
}

// Calls in turns of their own belong to the assistant's turn before them.
Status TurnReader::add_call_turn(Turn turn) {
  if (sample_.turns.empty() || sample_.turns.back().role != Role::kAssistant) {
    sample_.turns.push_back(std::move(turn));
    return {};
  }
  Turn& before = sample_.turns.back();
  if (before.loss_scale != turn.loss_scale) {
    return Status(Reason::kRowAmbiguous, "a tool call turn and the assistant's turn before it differ in their loss");
  }
  before.tool_calls.insert(before.tool_calls.end(), std::make_move_iterator(turn.tool_calls.begin()),
                           std::make_move_iterator(turn.tool_calls.end()));
  return {};
}

}  // namespace stoker

#include "manifest/row.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "manifest/json_text.h"

namespace stoker {
namespace {

constexpr std::string_view kImageMark = "<image>";
constexpr std::size_t kMaxShown = 64;  // bytes of foreign text in a message

// Foreign text in messages: cut, never inside a character.
std::string shown(std::string_view text) {
  if (text.size() <= kMaxShown) return std::string(text);
  std::size_t n = kMaxShown;
  while (n > 0 && (static_cast<unsigned char>(text[n]) & 0xC0) == 0x80) --n;
  return std::string(text.substr(0, n)) + "...";
}

template <typename... Args>
Status schema(const JsonView& at, fmt::format_string<Args...> what, Args&&... args) {
  return Status(Reason::kRowSchema, at.where() + ": " + fmt::format(what, std::forward<Args>(args)...));
}

// The values of those keys of `object` that the engine reads; null counts as absent, a key that stands twice is
// refused.
template <std::size_t N>
class Fields {
 public:
  using Names = std::array<std::string_view, N>;

  static Result<Fields> of(const JsonView& object, const Names& names) {
    Fields fields(names);
    std::array<bool, N> seen{};
    for (JsonView key = object.first(); key; key = key.next().next()) {
      for (std::size_t i = 0; i < N; ++i) {
        if (!key.string_is(names[i])) continue;
        if (std::exchange(seen[i], true)) {
          return Status(Reason::kJsonDuplicateKey, fmt::format("{}: key '{}' stands twice", key.where(), names[i]));
        }
        const JsonView value = key.next();
        if (!value.is_null()) fields.values_[i] = value;
        break;
      }
    }
    return fields;
  }

  const JsonView& operator[](std::string_view name) const {
    return values_[static_cast<std::size_t>(std::find(names_.begin(), names_.end(), name) - names_.begin())];
  }
  // The first of `names` that is there.
  JsonView any(std::initializer_list<std::string_view> names) const {
    for (const std::string_view name : names) {
      if ((*this)[name]) return (*this)[name];
    }
    return {};
  }

 private:
  explicit Fields(const Names& names) : names_(names) {}
  const Names& names_;
  std::array<JsonView, N> values_{};
};

constexpr std::array<std::string_view, 12> kRowKeys = {"messages", "conversations", "image", "images",
                                                       "width",    "height",        "tools", "id",
                                                       "video",    "videos",        "audio", "audios"};
constexpr std::array<std::string_view, 5> kTurnKeys = {"role", "content", "from", "value", "tool_calls"};
constexpr std::array<std::string_view, 11> kPartKeys = {"type",   "text",  "image",  "image_url", "url",  "path",
                                                        "source", "width", "height", "video",     "audio"};
constexpr std::array<std::string_view, 6> kImageKeys = {"image", "path", "url", "image_url", "width", "height"};
constexpr std::array<std::string_view, 4> kSourceKeys = {"type", "media_type", "data", "url"};
constexpr std::array<std::string_view, 3> kCallKeys = {"function", "name", "arguments"};

std::optional<Role> role_named(std::string_view name) {
  using Entry = std::pair<std::string_view, Role>;
  static constexpr std::array<Entry, 9> kRoles = {{{"system", Role::kSystem},
                                                   {"user", Role::kUser},
                                                   {"human", Role::kUser},
                                                   {"assistant", Role::kAssistant},
                                                   {"gpt", Role::kAssistant},
                                                   {"model", Role::kAssistant},
                                                   {"tool", Role::kTool},
                                                   {"function", Role::kTool},
                                                   {"observation", Role::kTool}}};
  for (const auto& [known, role] : kRoles) {
    if (name == known) return role;
  }
  return std::nullopt;
}

bool is_empty_list(const JsonView& value) { return value.is_array() && !value.first(); }

// A side in pixels, 0 for what means "unknown" in the wild.
Result<int> side_px(const JsonView& value) {
  const std::string_view raw = value.raw();
  double side = 0;
  const bool is_number = value.type() == JsonType::kInt || value.type() == JsonType::kFloat;
  if (is_number) {
    const auto read = std::from_chars(raw.data(), raw.data() + raw.size(), side);
    if (read.ec != std::errc() && raw.size() > 1) side = std::numeric_limits<double>::max();
  }
  const bool is_whole = side < 0 || (side <= std::numeric_limits<int>::max() && side == static_cast<int>(side));
  if (!is_number || !is_whole) {
    return schema(value, "a width or height must be a whole number of pixels, not {}", shown(raw));
  }
  return side < 1 ? 0 : static_cast<int>(side);
}

class RowReader {
 public:
  explicit RowReader(RowNotes& notes) : notes_(notes) {}

  Result<Sample> read(const JsonView& root) {
    if (!root.is_object()) return schema(root, "a row must be an object, not {}", root.type_name());
    STOKER_TRY(const auto row, Fields<kRowKeys.size()>::of(root, kRowKeys));
    STOKER_TRY(const JsonView turns, turns_of(root, row));
    for (const std::string_view key : {"video", "videos", "audio", "audios"}) {
      if (row[key] && !is_empty_list(row[key])) {
        return Status(Reason::kMediaUnsupported, fmt::format("{}: the row has '{}'", row[key].where(), key));
      }
    }
    if (const JsonView id = row["id"]) notes_.id = id.is_string() ? id.string() : std::string(id.raw());
    STOKER_CHECKED(read_images(row));
    STOKER_CHECKED(read_tools(row["tools"]));
    for (JsonView turn = turns.first(); turn; turn = turn.next()) STOKER_CHECKED(read_turn(turn));
    if (n_placeholders_ != images_.size()) {
      return Status(Reason::kMediaCount, fmt::format("placeholders {}, images {}", n_placeholders_, images_.size()));
    }
    return std::move(sample_);
  }

 private:
  static Result<JsonView> turns_of(const JsonView& root, const Fields<kRowKeys.size()>& row) {
    const JsonView messages = row["messages"];
    const JsonView conversations = row["conversations"];
    if (messages && conversations)
      return Status(Reason::kRowAmbiguous, "the row has both 'messages' and 'conversations'");
    const JsonView turns = messages ? messages : conversations;
    if (!turns) {
      std::string found;
      for (JsonView key = root.first(); key && found.size() < 4 * kMaxShown; key = key.next().next()) {
        found += (found.empty() ? "" : ", ") + shown(key.string());
      }
      return schema(root, "neither 'messages' nor 'conversations'; keys found: {}", found.empty() ? "none" : found);
    }
    if (!turns.is_array()) return schema(turns, "the conversation must be a list, not {}", turns.type_name());
    if (!turns.first()) return schema(turns, "the conversation is empty");
    return turns;
  }

  Result<std::string> reference_of(const JsonView& value) {
    if (value.is_string()) return value.string(&notes_.text_replaced);
    if (!value.is_object()) return schema(value, "an image must be a string or an object, not {}", value.type_name());
    STOKER_TRY(const auto fields, Fields<kImageKeys.size()>::of(value, kImageKeys));
    const JsonView inner = fields.any({"image", "path", "url", "image_url"});
    if (!inner) return schema(value, "an image without 'image', 'path' or 'url'");
    if (!inner.is_string()) return schema(inner, "an image reference must be a string, not {}", inner.type_name());
    return inner.string(&notes_.text_replaced);
  }

  static Status read_size(const JsonView& width, const JsonView& height, MediaRef& media) {
    if (!width || !height) return {};
    STOKER_TRY(const int w, side_px(width));
    STOKER_TRY(const int h, side_px(height));
    if (w == 0 || h == 0) return {};
    media.width_px = w;
    media.height_px = h;
    return {};
  }

  Status read_image(const JsonView& value) {
    MediaRef media;
    STOKER_TRY(media.reference, reference_of(value));
    if (value.is_object()) {
      STOKER_TRY(const auto fields, Fields<kImageKeys.size()>::of(value, kImageKeys));
      STOKER_CHECKED(read_size(fields["width"], fields["height"], media));
    }
    images_.push_back(std::move(media));
    return {};
  }

  Status read_images(const Fields<kRowKeys.size()>& row) {
    const auto given = [&](std::string_view key) { return row[key] && !is_empty_list(row[key]); };
    if (given("image") && given("images"))
      return Status(Reason::kRowAmbiguous, "the row has both 'image' and 'images'");
    const JsonView images = given("image") ? row["image"] : row["images"];
    if (!images) return {};
    if (images.is_array()) {
      for (JsonView v = images.first(); v; v = v.next()) STOKER_CHECKED(read_image(v));
    } else {
      STOKER_CHECKED(read_image(images));
    }
    return read_row_sizes(row["width"], row["height"]);
  }

  Status read_row_sizes(const JsonView& width, const JsonView& height) {
    if (!width || !height || images_.empty()) return {};
    if (!width.is_array() && !height.is_array()) {
      // One number says nothing about several images: their headers will.
      if (images_.size() > 1 || images_[0].width_px > 0) return {};
      return read_size(width, height, images_[0]);
    }
    if (!width.is_array() || !height.is_array() || width.size() != images_.size() || height.size() != images_.size()) {
      return schema(width, "'width' and 'height' must be numbers or lists as long as the images ({})", images_.size());
    }
    JsonView w = width.first();
    JsonView h = height.first();
    for (MediaRef& media : images_) {
      if (media.width_px == 0 && !w.is_null() && !h.is_null()) STOKER_CHECKED(read_size(w, h, media));
      w = w.next();
      h = h.next();
    }
    return {};
  }

  Status read_tools(const JsonView& tools) {
    if (!tools) return {};
    if (tools.is_string()) {  // some files keep the list as text
      const std::string text = tools.string(&notes_.text_replaced);
      if (text.find_first_not_of(" \t\r\n") == std::string::npos) return {};
      JsonDocument inner;
      if (Status parsed = inner.parse(text); !parsed.ok()) return std::move(parsed).with(tools.where() + ": 'tools'");
      if (!inner.root().is_array()) return schema(tools, "'tools' must hold a list");
      return read_tool_list(inner.root());
    }
    if (!tools.is_array()) return schema(tools, "'tools' must be a list, not {}", tools.type_name());
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

  Status read_turn(const JsonView& value) {
    if (!value.is_object()) return schema(value, "a turn must be an object, not {}", value.type_name());
    STOKER_TRY(const auto fields, Fields<kTurnKeys.size()>::of(value, kTurnKeys));
    const JsonView role = fields.any({"role", "from"});
    if ((fields["role"] && fields["from"]) || (fields["content"] && fields["value"])) {
      return Status(Reason::kRowAmbiguous, value.where() + ": the turn has both 'role'/'content' and 'from'/'value'");
    }
    if (!role) return schema(value, "a turn without 'role' or 'from'");
    if (!role.is_string()) return schema(role, "a role must be a string, not {}", role.type_name());
    const std::string name = role.string();
    const std::optional<Role> known = role_named(name);
    if (!known) return Status(Reason::kRoleUnknown, fmt::format("{}: role '{}'", role.where(), shown(name)));
    Turn turn;
    turn.role = *known;
    STOKER_CHECKED(read_content(fields.any({"content", "value"}), turn));
    STOKER_CHECKED(read_tool_calls(fields["tool_calls"], turn));
    sample_.turns.push_back(std::move(turn));
    return {};
  }

  Status read_content(const JsonView& content, Turn& turn) {
    if (!content) return {};
    if (content.is_string()) {
      const std::string text = content.string(&notes_.text_replaced);
      turn.has_content = !text.empty();
      read_marked_text(text, turn);
      return {};
    }
    if (!content.is_array())
      return schema(content, "content must be a string or a list of parts, not {}", content.type_name());
    turn.has_content = static_cast<bool>(content.first());
    for (JsonView part = content.first(); part; part = part.next()) STOKER_CHECKED(read_part(part, turn));
    return {};
  }

  // String form: every mark is a placeholder, the rest stays as it is.
  void read_marked_text(std::string_view text, Turn& turn) {
    while (!text.empty()) {
      const std::size_t mark = text.find(kImageMark);
      if (mark != 0) add_text(std::string(text.substr(0, mark)), turn);
      if (mark == std::string_view::npos) return;
      take_next_image({}, turn);
      text.remove_prefix(mark + kImageMark.size());
    }
  }

  static void add_text(std::string text, Turn& turn) {
    Part part;
    part.text = std::move(text);
    turn.parts.push_back(std::move(part));
  }

  void add_image(MediaRef media, Turn& turn) {
    Part part;
    part.kind = Part::Kind::kImage;
    part.media = static_cast<std::uint32_t>(sample_.media.size());
    turn.parts.push_back(std::move(part));
    sample_.media.push_back(std::move(media));
  }

  // A placeholder beyond the last image is only counted: the row is refused at its end, with both numbers.
  void take_next_image(const MediaRef& size, Turn& turn) {
    if (n_placeholders_ < images_.size()) {
      MediaRef media = images_[n_placeholders_];
      if (media.width_px == 0) {
        media.width_px = size.width_px;
        media.height_px = size.height_px;
      }
      add_image(std::move(media), turn);
    }
    ++n_placeholders_;
  }

  Status read_part(const JsonView& value, Turn& turn) {
    if (!value.is_object()) return schema(value, "a part must be an object, not {}", value.type_name());
    STOKER_TRY(const auto fields, Fields<kPartKeys.size()>::of(value, kPartKeys));
    const JsonView image = fields.any({"image", "image_url", "url", "path", "source"});
    STOKER_TRY(const std::string type, part_type(value, fields, static_cast<bool>(image)));
    if (type == "text") {
      const JsonView text = fields["text"];
      if (!text) return schema(value, "a text part without 'text'");
      if (!text.is_string()) return schema(text, "'text' must be a string, not {}", text.type_name());
      if (fields["image"] || fields["image_url"] || fields["video"] || fields["audio"]) {
        return schema(value, "a text part that also has media");
      }
      add_text(text.string(&notes_.text_replaced), turn);
      return {};
    }
    if (type == "image" || type == "image_url") {
      MediaRef media;
      STOKER_CHECKED(read_size(fields["width"], fields["height"], media));
      if (!image) {
        take_next_image(media, turn);
        return {};
      }
      STOKER_CHECKED(read_part_reference(image, fields["source"], media));
      add_image(std::move(media), turn);
      return {};
    }
    if (type == "video" || type == "video_url") {
      return Status(Reason::kMediaUnsupported, fmt::format("{}: a part of type '{}'", value.where(), type));
    }
    return Status(Reason::kPartType, fmt::format("{}: a part of type '{}'", value.where(), shown(type)));
  }

  // A part without 'type' is what its only content key says.
  static Result<std::string> part_type(const JsonView& value, const Fields<kPartKeys.size()>& fields, bool has_image) {
    if (const JsonView type = fields["type"]) {
      if (!type.is_string()) return schema(type, "the type of a part must be a string, not {}", type.type_name());
      return type.string();
    }
    const bool has_video = static_cast<bool>(fields["video"]);
    const bool has_audio = static_cast<bool>(fields["audio"]);
    const bool has_text = static_cast<bool>(fields["text"]);
    if (int{has_image} + int{has_video} + int{has_audio} + int{has_text} != 1) {
      return schema(value, "a part without 'type'");
    }
    return std::string(has_image ? "image" : has_video ? "video" : has_audio ? "audio" : "text");
  }

  Status read_part_reference(const JsonView& image, const JsonView& source, MediaRef& media) {
    const bool is_source = source && source.raw().data() == image.raw().data();
    if (!is_source || !image.is_object()) {
      STOKER_TRY(media.reference, reference_of(image));
      if (image.is_object() && media.width_px == 0) {
        STOKER_TRY(const auto fields, Fields<kImageKeys.size()>::of(image, kImageKeys));
        STOKER_CHECKED(read_size(fields["width"], fields["height"], media));
      }
      return {};
    }
    STOKER_TRY(const auto fields, Fields<kSourceKeys.size()>::of(image, kSourceKeys));
    for (const std::string_view key : kSourceKeys) {
      if (fields[key] && !fields[key].is_string()) return schema(fields[key], "'{}' must be a string", key);
    }
    if (fields["data"]) {
      const std::string media_type = fields["media_type"] ? fields["media_type"].string() : "";
      media.reference = "data:" + media_type + ";base64," + fields["data"].string();
    } else if (fields["url"]) {
      media.reference = fields["url"].string(&notes_.text_replaced);
    } else {
      return schema(image, "a source without 'data' or 'url'");
    }
    return {};
  }

  Status read_tool_calls(const JsonView& calls, Turn& turn) {
    if (!calls || is_empty_list(calls)) return {};
    if (!calls.is_array()) return schema(calls, "'tool_calls' must be a list, not {}", calls.type_name());
    if (turn.role != Role::kAssistant) return schema(calls, "'tool_calls' in a turn that is not the assistant's");
    for (JsonView v = calls.first(); v; v = v.next()) {
      if (!v.is_object()) return schema(v, "a tool call must be an object, not {}", v.type_name());
      STOKER_TRY(const auto outer, Fields<kCallKeys.size()>::of(v, kCallKeys));
      const JsonView body = outer["function"] ? outer["function"] : v;
      if (!body.is_object()) return schema(body, "'function' must be an object, not {}", body.type_name());
      STOKER_TRY(const auto call, Fields<kCallKeys.size()>::of(body, kCallKeys));
      const JsonView name = call["name"];
      const JsonView arguments = call["arguments"];
      if (!name || !name.is_string() || !arguments) return schema(body, "a tool call wants a 'name' and 'arguments'");
      ToolCall tool_call;
      tool_call.name = name.string(&notes_.text_replaced);
      if (arguments.is_string()) {
        tool_call.arguments = arguments.string(&notes_.text_replaced);
      } else {
        STOKER_CHECKED(append_json_text(arguments, tool_call.arguments, &notes_.text_replaced));
      }
      turn.tool_calls.push_back(std::move(tool_call));
    }
    return {};
  }

  RowNotes& notes_;
  Sample sample_;
  std::vector<MediaRef> images_;    // the row's own list, in order
  std::size_t n_placeholders_ = 0;  // that take from it
};

}  // namespace

Result<Sample> parse_row(std::string_view line, const RowOptions& options, RowNotes* notes) {
  thread_local JsonDocument document;
  RowNotes unread;
  RowNotes& said = notes != nullptr ? *notes : unread;
  said = {};
  STOKER_CHECKED(document.parse(line, options.json));
  return RowReader(said).read(document.root());
}

}  // namespace stoker

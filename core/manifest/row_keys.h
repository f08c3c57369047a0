#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/result.h"
#include "manifest/json.h"
#include "manifest/row_options.h"

namespace stoker {

inline constexpr std::size_t kMaxShownBytes = 64;  ///< of foreign text in a message

/// Foreign text in messages: cut, never inside a character.
inline std::string shown(std::string_view text) {
  if (text.size() <= kMaxShownBytes) return std::string(text);
  std::size_t n = kMaxShownBytes;
  while (n > 0 && (static_cast<unsigned char>(text[n]) & 0xC0) == 0x80) --n;
  return std::string(text.substr(0, n)) + "...";
}

template <typename... Args>
Status row_schema(const JsonView& at, fmt::format_string<Args...> what, Args&&... args) {
  return Status(Reason::kRowSchema, at.where() + ": " + fmt::format(what, std::forward<Args>(args)...));
}

inline bool is_empty_list(const JsonView& value) { return value.is_array() && !value.first(); }
inline bool is_number(const JsonView& value) {
  return value.type() == JsonType::kInt || value.type() == JsonType::kFloat;
}
/// A number as a double; beyond double: the largest.
double number_of(const JsonView& value);

template <std::size_t N>
using KeyNames = std::array<std::string_view, N>;

// The keys that the engine reads, by its own names.
inline constexpr KeyNames<23> kRowKeys = {
    "messages", "conversations", "prompt", "completion", "query",        "response", "history", "instruction", "input",
    "output",   "system",        "image",  "images",     "width",        "height",   "tools",   "objects",     "id",
    "video",    "videos",        "audio",  "audios",     "images_base64"};
inline constexpr KeyNames<8> kTurnKeys = {"role",       "content", "from",       "value",
                                          "tool_calls", "loss",    "loss_scale", "weight"};

/// The rows' own spelling of the keys in `names`. A key whose spelling is taken by another column is not read under its
/// own name any more, and neither is the other spelling of a renamed one (`conversations` once `messages` has a name).
template <std::size_t N>
KeyNames<N> renamed(const KeyNames<N>& names, const RowOptions& options) {
  KeyNames<N> out = names;
  const auto at = [&](std::string_view name) {
    return static_cast<std::size_t>(std::find(names.begin(), names.end(), name) - names.begin());
  };
  constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kOtherSpelling = {
      {{"messages", "conversations"}, {"images", "image"}, {"role", "from"}, {"content", "value"}}};
  for (const auto& [column, key] : options.columns) {
    const std::size_t mine = at(column);
    if (mine == N) continue;
    for (std::string_view& name : out) {
      if (name == key) name = {};
    }
    for (const auto& [one, other] : kOtherSpelling) {
      if (column == one) out[at(other)] = {};
    }
  }
  for (const auto& [column, key] : options.columns) {
    if (const std::size_t mine = at(column); mine < N) out[mine] = key;
  }
  // Not listed in the settings, not read: a column of bare base64 must be named.
  if (const std::size_t bare = at("images_base64"); bare < N && out[bare] == names[bare]) out[bare] = {};
  return out;
}

/// The values of those keys of an object that the engine reads. `null` counts as absent; a key that stands twice is
/// refused. Looked up by the engine's names.
template <std::size_t N>
class Fields {
 public:
  /// @param names   The engine's. @param spelling  The row's, in the same order. Both must outlive this.
  static Result<Fields> of(const JsonView& object, const KeyNames<N>& names, const KeyNames<N>& spelling) {
    Fields fields(names);
    std::array<bool, N> seen{};
    for (JsonView key = object.first(); key; key = key.next().next()) {
      for (std::size_t i = 0; i < N; ++i) {
        if (spelling[i].empty() || !key.string_is(spelling[i])) continue;
        if (std::exchange(seen[i], true)) {
          return Status(Reason::kJsonDuplicateKey,
                        fmt::format("{}: key '{}' stands twice", key.where(), shown(spelling[i])));
        }
        const JsonView value = key.next();
        if (!value.is_null()) fields.values_[i] = value;
        break;
      }
    }
    return fields;
  }
  static Result<Fields> of(const JsonView& object, const KeyNames<N>& names) { return of(object, names, names); }

  const JsonView& operator[](std::string_view name) const {
    return values_[static_cast<std::size_t>(std::find(names_->begin(), names_->end(), name) - names_->begin())];
  }
  /// The first of `names` that is there.
  JsonView any(std::initializer_list<std::string_view> names) const {
    for (const std::string_view name : names) {
      if ((*this)[name]) return (*this)[name];
    }
    return {};
  }
  bool has(std::string_view name) const { return static_cast<bool>((*this)[name]); }

 private:
  explicit Fields(const KeyNames<N>& names) : names_(&names) {}
  const KeyNames<N>* names_;
  std::array<JsonView, N> values_{};
};

using RowFields = Fields<kRowKeys.size()>;

}  // namespace stoker

#include "manifest/row_options.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <system_error>

#include <fmt/format.h>

#include "manifest/row_keys.h"

namespace stoker {
namespace {

constexpr std::array<std::pair<std::string_view, RowShape>, 6> kShapes = {
    {{"auto", RowShape::kAuto},
     {"messages", RowShape::kMessages},
     {"conversations", RowShape::kConversations},
     {"prompt-completion", RowShape::kPromptCompletion},
     {"query-response", RowShape::kQueryResponse},
     {"instruction", RowShape::kInstruction}}};

constexpr std::array<std::pair<std::string_view, RowRole>, 6> kRoles = {{{"system", RowRole::kSystem},
                                                                         {"user", RowRole::kUser},
                                                                         {"assistant", RowRole::kAssistant},
                                                                         {"tool", RowRole::kTool},
                                                                         {"developer", RowRole::kDeveloper},
                                                                         {"tool_call", RowRole::kToolCall}}};

// Kept out of the settings: other spellings of a column that has a name already, and what is never renamed in the wild.
bool is_column(std::string_view name) {
  constexpr std::array<std::string_view, 5> kSpellings = {"conversations", "image", "from", "value", "video"};
  const auto in = [&](const auto& names) { return std::find(names.begin(), names.end(), name) != names.end(); };
  return (in(kRowKeys) || in(kTurnKeys)) && !in(kSpellings);
}

std::string list_of_columns() {
  std::string out;
  const auto add = [&](const auto& names) {
    for (const std::string_view name : names) {
      if (is_column(name)) out += fmt::format("{}{}", out.empty() ? "" : ", ", name);
    }
  };
  add(kRowKeys);
  add(kTurnKeys);
  return out;
}

}  // namespace

std::string_view name_of(RowShape shape) { return kShapes[static_cast<std::size_t>(shape)].first; }

std::optional<RowShape> row_shape_named(std::string_view name) {
  for (const auto& [known, shape] : kShapes) {
    if (name == known) return shape;
  }
  return std::nullopt;
}

std::optional<RowRole> row_role_named(std::string_view name) {
  for (const auto& [known, role] : kRoles) {
    if (name == known) return role;
  }
  return std::nullopt;
}

Status check_row_options(const RowOptions& options) {
  for (std::size_t i = 0; i < options.columns.size(); ++i) {
    const auto& [column, key] = options.columns[i];
    if (!is_column(column)) {
      return Status(Reason::kSettings,
                    fmt::format("columns: the engine reads no column '{}'; the left side is one of {}", shown(column),
                                list_of_columns()));
    }
    if (key.empty()) return Status(Reason::kSettings, fmt::format("columns: '{}' has no name", column));
    for (std::size_t k = 0; k < i; ++k) {
      if (options.columns[k].first == column || options.columns[k].second == key) {
        return Status(Reason::kSettings, fmt::format("columns: '{}' is named twice",
                                                     options.columns[k].first == column ? column : shown(key)));
      }
    }
  }
  for (std::size_t i = 0; i < options.roles.size(); ++i) {
    if (options.roles[i].first.empty()) return Status(Reason::kSettings, "roles: an empty word");
    for (std::size_t k = 0; k < i; ++k) {
      if (options.roles[k].first == options.roles[i].first) {
        return Status(Reason::kSettings, fmt::format("roles: '{}' stands twice", shown(options.roles[i].first)));
      }
    }
  }
  return {};
}

Result<RowOptions> make_row_options(std::string_view shape, std::vector<std::pair<std::string, std::string>> columns,
                                    const std::vector<std::pair<std::string, std::string>>& roles,
                                    bool nonfinite_is_null) {
  RowOptions options;
  options.json.nonfinite_is_null = nonfinite_is_null;
  options.columns = std::move(columns);
  const auto named = row_shape_named(shape);
  if (!named) return Status(Reason::kSettings, fmt::format("shape: rows have no form '{}'", shown(shape)));
  options.shape = *named;
  for (const auto& [word, role] : roles) {
    const auto meaning = row_role_named(role);
    if (!meaning) {
      return Status(Reason::kSettings,
                    fmt::format("roles: '{}' is no role; there are system, user, assistant, tool, developer, tool_call",
                                shown(role)));
    }
    options.roles.emplace_back(word, *meaning);
  }
  STOKER_CHECKED(check_row_options(options));
  return options;
}

std::string describe(const RowOptions& options) {
  auto columns = options.columns;
  auto roles = options.roles;
  std::sort(columns.begin(), columns.end());
  std::sort(roles.begin(), roles.end());
  // Every name with its length, so that no two lists run together.
  std::string out = fmt::format("{} {}", name_of(options.shape), options.json.nonfinite_is_null ? 1 : 0);
  for (const auto& [column, key] : columns) out += fmt::format(" {}:{}={}:{}", column.size(), column, key.size(), key);
  for (const auto& [word, role] : roles) out += fmt::format(" {}:{}>{}", word.size(), word, static_cast<int>(role));
  return out;
}

double number_of(const JsonView& value) {
  const std::string_view raw = value.raw();
  double number = 0;
  const auto read = std::from_chars(raw.data(), raw.data() + raw.size(), number);
  // Out of range is either beyond double or so small that it is 0; the exponent's sign tells.
  if (read.ec == std::errc::result_out_of_range) {
    const bool is_tiny = raw.find("e-") != std::string_view::npos || raw.find("E-") != std::string_view::npos;
    if (is_tiny) return 0;
    return raw.front() == '-' ? std::numeric_limits<double>::lowest() : std::numeric_limits<double>::max();
  }
  return number;
}

}  // namespace stoker

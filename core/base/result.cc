#include "base/result.h"

#include <array>

namespace stoker {
namespace {

struct Row {
  std::string_view name;
  Code action;
  std::string_view text;
};

constexpr std::array<Row, kNumReasons> kTable = {{
#define STOKER_REASON(id, name, action, text) Row{name, Code::action, text},
#include "base/reasons.def"
#undef STOKER_REASON
}};

}  // namespace

Code action_of(Reason reason) { return kTable[static_cast<std::size_t>(reason)].action; }
std::string_view name_of(Reason reason) { return kTable[static_cast<std::size_t>(reason)].name; }
std::string_view text_of(Reason reason) { return kTable[static_cast<std::size_t>(reason)].text; }

std::optional<Reason> reason_named(std::string_view name) {
  for (std::size_t i = 0; i < kTable.size(); ++i) {
    if (kTable[i].name == name) return static_cast<Reason>(i);
  }
  return std::nullopt;
}

Status Status::with(std::string_view context) && {
  if (!ok()) {
    std::string longer(context);
    longer += ": ";
    longer += message_;
    message_ = std::move(longer);
  }
  return std::move(*this);
}

std::string Status::to_string() const {
  if (ok()) return "OK";
  std::string out(name_of(reason_));
  out += ": ";
  out += message_;
  return out;
}

}  // namespace stoker

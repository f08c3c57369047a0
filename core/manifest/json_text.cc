#include "manifest/json_text.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <vector>

#include <fmt/format.h>

namespace stoker {
namespace {

void append_string(std::string_view text, std::string& out) {
  out.push_back('"');
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\f':
        out += "\\f";
        break;
      case '\b':
        out += "\\b";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += fmt::format("\\u{:04x}", static_cast<unsigned>(static_cast<unsigned char>(c)));
        } else {
          out.push_back(c);
        }
    }
  }
  out.push_back('"');
}

// Whether a number that is outside of double's range is too large rather than too small: by the decimal exponent of its
// first digit.
bool is_huge(std::string_view number) {
  const std::size_t e = std::min(number.find_first_of("eE"), number.size());
  std::string_view mantissa = number.substr(0, e);
  if (mantissa.starts_with('-')) mantissa.remove_prefix(1);
  const std::size_t first = mantissa.find_first_of("123456789");
  if (first == std::string_view::npos) return false;
  const std::size_t point = std::min(mantissa.find('.'), mantissa.size());
  bool exponent_is_negative = false;
  std::uint64_t exponent = 0;
  for (const char c : number.substr(std::min(e + 1, number.size()))) {
    if (c == '-') exponent_is_negative = true;
    if (c >= '0' && c <= '9')
      exponent = std::min<std::uint64_t>(exponent * 10 + static_cast<std::uint64_t>(c - '0'), 1ULL << 40);
  }
  const auto shift = static_cast<std::int64_t>(point) - static_cast<std::int64_t>(first);
  return shift + (exponent_is_negative ? -static_cast<std::int64_t>(exponent) : static_cast<std::int64_t>(exponent)) >
         0;
}

// float.__repr__: the fewest digits that read back the same; plain for exponents from -4 to 15, else with an exponent
// of two digits or more.
void append_float(double value, std::string& out) {
  char text[32];
  const auto done = std::to_chars(text, text + sizeof text, std::abs(value), std::chars_format::scientific);
  const std::string_view shortest(text, static_cast<std::size_t>(done.ptr - text));
  const std::size_t e = shortest.find('e');
  int exponent = 0;
  const std::size_t exponent_at = shortest[e + 1] == '+' ? e + 2 : e + 1;
  std::from_chars(shortest.data() + exponent_at, shortest.data() + shortest.size(), exponent);
  std::string digits(1, shortest[0]);
  if (e > 2) digits += shortest.substr(2, e - 2);

  if (std::signbit(value)) out.push_back('-');
  if (exponent < -4 || exponent >= 16) {
    out.push_back(digits[0]);
    if (digits.size() > 1) out.append(".").append(digits, 1);
    out += fmt::format("e{}{:02}", exponent < 0 ? '-' : '+', std::abs(exponent));
    return;
  }
  if (exponent < 0) {
    out.append("0.").append(static_cast<std::size_t>(-exponent - 1), '0').append(digits);
    return;
  }
  const auto n_whole = static_cast<std::size_t>(exponent) + 1;
  if (digits.size() <= n_whole) {
    out.append(digits).append(n_whole - digits.size(), '0').append(".0");
  } else {
    out.append(digits, 0, n_whole).append(".").append(digits, n_whole);
  }
}

Status append_number(const JsonView& value, std::string& out) {
  const std::string_view raw = value.raw();
  if (value.type() == JsonType::kInt) {
    out += raw == "-0" ? std::string_view("0") : raw;  // Python's integers have one zero
    return {};
  }
  double number = 0;
  const auto read = std::from_chars(raw.data(), raw.data() + raw.size(), number);
  if (read.ec == std::errc::result_out_of_range) {
    if (is_huge(raw)) {
      return Status(Reason::kJsonNonfinite,
                    fmt::format("{}: {} is beyond the range of a float", value.where(), raw.substr(0, 64)));
    }
    number = raw.starts_with('-') ? -0.0 : 0.0;
  }
  append_float(number, out);
  return {};
}

Status refuse_duplicate_keys(const JsonView& object) {
  std::vector<std::string> keys;
  for (JsonView key = object.first(); key; key = key.next().next()) keys.push_back(key.string());
  std::sort(keys.begin(), keys.end());
  const auto twice = std::adjacent_find(keys.begin(), keys.end());
  if (twice == keys.end()) return {};
  return Status(Reason::kJsonDuplicateKey,
                fmt::format("{}: key '{}' stands twice", object.where(), twice->substr(0, 64)));
}

}  // namespace

Status append_json_text(const JsonView& value, std::string& out, std::uint32_t* n_replaced) {
  switch (value.type()) {
    case JsonType::kNull:
      out += "null";
      return {};
    case JsonType::kTrue:
      out += "true";
      return {};
    case JsonType::kFalse:
      out += "false";
      return {};
    case JsonType::kInt:
    case JsonType::kFloat:
      return append_number(value, out);
    case JsonType::kString:
      append_string(value.string(n_replaced), out);
      return {};
    case JsonType::kArray:
      out.push_back('[');
      for (JsonView v = value.first(); v; v = v.next()) {
        STOKER_CHECKED(append_json_text(v, out, n_replaced));
        if (v.next()) out += ", ";
      }
      out.push_back(']');
      return {};
    case JsonType::kObject:
      break;
  }
  STOKER_CHECKED(refuse_duplicate_keys(value));
  out.push_back('{');
  for (JsonView key = value.first(); key;) {
    const JsonView item = key.next();
    append_string(key.string(n_replaced), out);
    out += ": ";
    STOKER_CHECKED(append_json_text(item, out, n_replaced));
    key = item.next();
    if (key) out += ", ";
  }
  out.push_back('}');
  return {};
}

Result<std::string> json_text(std::string_view text) {
  JsonDocument document;
  STOKER_CHECKED(document.parse(text));
  std::string out;
  out.reserve(text.size());
  STOKER_CHECKED(append_json_text(document.root(), out));
  return out;
}

}  // namespace stoker

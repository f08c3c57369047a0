#include "manifest/json.h"

#include <bit>
#include <cstring>
#include <limits>

#include <fmt/format.h>
#include <simdjson.h>

namespace stoker {
namespace {

constexpr int kMaxDepth = 200;  // of the recursion, so that a hostile row cannot use up a thread's stack
constexpr std::size_t kMaxNodes = std::size_t{16} << 20;  // 400 MB of nodes; a training row has a few hundred
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

// Length of the valid UTF-8 sequence at `p`, 0 if there is none (Unicode 16.0, table 3-7).
std::size_t utf8_length(const char* p, const char* end) {
  const auto byte = [&](std::ptrdiff_t i) { return i < end - p ? static_cast<unsigned char>(p[i]) : 0U; };
  const auto in = [&](std::ptrdiff_t i, unsigned low, unsigned high) { return byte(i) >= low && byte(i) <= high; };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return in(1, 0x80, 0xBF) ? 2 : 0;
  if (lead >= 0xE0 && lead <= 0xEF) {
    const unsigned low = lead == 0xE0 ? 0xA0 : 0x80;
    const unsigned high = lead == 0xED ? 0x9F : 0xBF;
    return in(1, low, high) && in(2, 0x80, 0xBF) ? 3 : 0;
  }
  if (lead >= 0xF0 && lead <= 0xF4) {
    const unsigned low = lead == 0xF0 ? 0x90 : 0x80;
    const unsigned high = lead == 0xF4 ? 0x8F : 0xBF;
    return in(1, low, high) && in(2, 0x80, 0xBF) && in(3, 0x80, 0xBF) ? 4 : 0;
  }
  return 0;
}

std::size_t first_invalid_utf8(std::string_view text) {
  const char* p = text.data();
  const char* const end = p + text.size();
  while (p < end) {
    const std::size_t n = utf8_length(p, end);
    if (n == 0) break;
    p += n;
  }
  return static_cast<std::size_t>(p - text.data());
}

// True if one of the eight bytes is a quote, a backslash or a control character: where plain text ends.
bool ends_plain_text(std::uint64_t word) {
  constexpr std::uint64_t kOnes = 0x0101010101010101ULL;
  constexpr std::uint64_t kHighs = 0x8080808080808080ULL;
  const auto has_zero = [&](std::uint64_t v) { return (v - kOnes) & ~v & kHighs; };
  const std::uint64_t below_space = (word - kOnes * 0x20) & ~word & kHighs;
  return (has_zero(word ^ (kOnes * '"')) | has_zero(word ^ (kOnes * '\\')) | below_space) != 0;
}

int hex_value(char c) {
  if (is_digit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// The four digits after \u; validated by the parser already.
std::uint32_t hex4(const char* p) {
  std::uint32_t value = 0;
  for (int i = 0; i < 4; ++i) value = value * 16 + static_cast<std::uint32_t>(hex_value(p[i]));
  return value;
}

void append_utf8(std::string& out, std::uint32_t c) {
  const auto put = [&](std::uint32_t byte) { out.push_back(static_cast<char>(static_cast<unsigned char>(byte))); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | (c >> 6));
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | (c >> 12));
    put(0x80 | ((c >> 6) & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | (c >> 18));
    put(0x80 | ((c >> 12) & 0x3F));
    put(0x80 | ((c >> 6) & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

bool is_high_surrogate(std::uint32_t c) { return c >= 0xD800 && c <= 0xDBFF; }
bool is_low_surrogate(std::uint32_t c) { return c >= 0xDC00 && c <= 0xDFFF; }

// Appends the character of the \u escape at `p` (on its backslash); returns what follows.
const char* append_unicode_escape(const char* p, const char* end, std::string& out, std::uint32_t* n_replaced) {
  const std::uint32_t first = hex4(p + 2);
  p += 6;
  if (is_high_surrogate(first) && end - p >= 6 && p[0] == '\\' && p[1] == 'u') {
    const std::uint32_t second = hex4(p + 2);
    if (is_low_surrogate(second)) {
      append_utf8(out, 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00));
      return p + 6;
    }
  }
  if (is_high_surrogate(first) || is_low_surrogate(first)) {
    out += kReplacement;
    if (n_replaced != nullptr) ++*n_replaced;
  } else {
    append_utf8(out, first);
  }
  return p;
}

char simple_escape(char c) {
  switch (c) {
    case 'b':
      return '\b';
    case 'f':
      return '\f';
    case 'n':
      return '\n';
    case 'r':
      return '\r';
    case 't':
      return '\t';
    default:
      return c;
  }
}

}  // namespace

std::string describe_offset(std::string_view text, std::size_t offset) {
  std::size_t column = 1;
  for (const char c : text.substr(0, offset)) column += is_continuation(c) ? 0 : 1;
  return fmt::format("column {}, byte {} of the row", column, offset);
}

/// Recursive descent over one text; writes the document's nodes.
class JsonParser {
 public:
  JsonParser(JsonDocument& document, const JsonOptions& options)
      : document_(document), options_(options), p_(document.text_.data()), end_(p_ + document.text_.size()) {}

  Status run() {
    skip_blanks();
    if (p_ == end_) return syntax("the row is empty");
    STOKER_CHECKED(value(0));
    skip_blanks();
    if (p_ != end_) return syntax("the row goes on after its value");
    return {};
  }

 private:
  using Node = JsonDocument::Node;

  Status syntax(std::string_view what) const { return fail(Reason::kJsonSyntax, p_, what); }
  Status fail(Reason reason, const char* at, std::string_view what) const {
    const auto offset = static_cast<std::size_t>(at - document_.text_.data());
    return Status(reason, fmt::format("{}: {}", describe_offset(document_.text_, offset), what));
  }

  void skip_blanks() {
    while (p_ != end_ && (*p_ == ' ' || *p_ == '\t' || *p_ == '\n' || *p_ == '\r')) ++p_;
  }

  // Adds a node; `end` of containers is set when they close.
  std::uint32_t add(JsonType type, const char* begin, const char* end, bool is_escaped = false) {
    const auto index = static_cast<std::uint32_t>(document_.nodes_.size());
    document_.nodes_.push_back({begin, static_cast<std::uint32_t>(end - begin), index + 1, type, is_escaped});
    return index;
  }

  Status value(int depth) {
    if (p_ == end_) return syntax("a value is missing where the row ends");
    if (document_.nodes_.size() >= kMaxNodes) return fail(Reason::kJsonRowTooLong, p_, "more than 16 million values");
    switch (*p_) {
      case '{':
        return object(depth);
      case '[':
        return array(depth);
      case '"':
        return string();
      case 't':
        return literal("true", JsonType::kTrue);
      case 'f':
        return literal("false", JsonType::kFalse);
      case 'n':
        return literal("null", JsonType::kNull);
      case 'N':
        return nonfinite("NaN");
      case 'I':
        return nonfinite("Infinity");
      case '-':
        if (end_ - p_ > 1 && p_[1] == 'I') return nonfinite("-Infinity");
        return number();
      default:
        break;
    }
    if (is_digit(*p_)) return number();
    return syntax("a value should start here");
  }

  bool take(std::string_view word) {
    if (std::string_view(p_, static_cast<std::size_t>(end_ - p_)).substr(0, word.size()) != word) return false;
    p_ += word.size();
    return true;
  }

  Status literal(std::string_view word, JsonType type) {
    const char* const begin = p_;
    if (!take(word)) return syntax("a value should start here");
    add(type, begin, p_);
    return {};
  }

  Status nonfinite(std::string_view word) {
    const char* const begin = p_;
    if (!take(word)) return syntax("a value should start here");
    if (!options_.nonfinite_is_null) {
      return fail(Reason::kJsonNonfinite, begin, fmt::format("{} is not JSON", word));
    }
    add(JsonType::kNull, begin, p_);
    return {};
  }

  Status digits() {
    if (p_ == end_ || !is_digit(*p_)) return syntax("a digit is missing");
    while (p_ != end_ && is_digit(*p_)) ++p_;
    return {};
  }

  Status number() {
    const char* const begin = p_;
    auto type = JsonType::kInt;
    if (*p_ == '-') ++p_;
    if (p_ != end_ && *p_ == '0') {
      ++p_;
      if (p_ != end_ && is_digit(*p_)) return syntax("a number starts with 0");
    } else {
      STOKER_CHECKED(digits());
    }
    if (p_ != end_ && *p_ == '.') {
      ++p_;
      type = JsonType::kFloat;
      STOKER_CHECKED(digits());
    }
    if (p_ != end_ && (*p_ == 'e' || *p_ == 'E')) {
      ++p_;
      type = JsonType::kFloat;
      if (p_ != end_ && (*p_ == '+' || *p_ == '-')) ++p_;
      STOKER_CHECKED(digits());
    }
    add(type, begin, p_);
    return {};
  }

  Status escape() {
    if (end_ - p_ < 2) return syntax("an escape ends too early");
    if (std::string_view("\"\\/bfnrt").find(p_[1]) != std::string_view::npos) {
      p_ += 2;
      return {};
    }
    if (p_[1] != 'u') return syntax("an escape that JSON does not have");
    for (int i = 2; i < 6; ++i) {
      if (end_ - p_ <= i || hex_value(p_[i]) < 0) return syntax("\\u wants four hexadecimal digits");
    }
    p_ += 6;
    return {};
  }

  Status string() {
    const char* const quote = p_++;
    bool is_escaped = false;
    while (true) {
      std::uint64_t word = 0;
      while (end_ - p_ >= 8 && (std::memcpy(&word, p_, 8), !ends_plain_text(word))) p_ += 8;
      if (p_ == end_) return fail(Reason::kJsonSyntax, quote, "this string is not closed");
      if (*p_ == '"') break;
      if (*p_ == '\\') {
        is_escaped = true;
        STOKER_CHECKED(escape());
      } else if (static_cast<unsigned char>(*p_) < 0x20) {
        return syntax("a control character in a string; it must be escaped");
      } else {
        ++p_;
      }
    }
    add(JsonType::kString, quote + 1, p_, is_escaped);
    ++p_;
    return {};
  }

  Status array(int depth) {
    if (depth >= kMaxDepth) return syntax(fmt::format("nested deeper than {} levels", kMaxDepth));
    const std::uint32_t self = add(JsonType::kArray, p_, p_ + 1);
    ++p_;
    skip_blanks();
    if (p_ != end_ && *p_ == ']') return close(self);
    while (true) {
      STOKER_CHECKED(value(depth + 1));
      skip_blanks();
      if (p_ != end_ && *p_ == ']') return close(self);
      if (p_ == end_ || *p_ != ',') return syntax("',' or ']' should stand here");
      ++p_;
      skip_blanks();
    }
  }

  Status object(int depth) {
    if (depth >= kMaxDepth) return syntax(fmt::format("nested deeper than {} levels", kMaxDepth));
    const std::uint32_t self = add(JsonType::kObject, p_, p_ + 1);
    ++p_;
    skip_blanks();
    if (p_ != end_ && *p_ == '}') return close(self);
    while (true) {
      if (p_ == end_ || *p_ != '"') return syntax("a key in quotes should stand here");
      STOKER_CHECKED(string());
      skip_blanks();
      if (p_ == end_ || *p_ != ':') return syntax("':' should stand here");
      ++p_;
      skip_blanks();
      STOKER_CHECKED(value(depth + 1));
      skip_blanks();
      if (p_ != end_ && *p_ == '}') return close(self);
      if (p_ == end_ || *p_ != ',') return syntax("',' or '}' should stand here");
      ++p_;
      skip_blanks();
    }
  }

  Status close(std::uint32_t self) {
    ++p_;
    Node& node = document_.nodes_[self];
    node.n_bytes = static_cast<std::uint32_t>(p_ - node.begin);
    node.end = static_cast<std::uint32_t>(document_.nodes_.size());
    return {};
  }

  JsonDocument& document_;
  const JsonOptions& options_;
  const char* p_;
  const char* const end_;
};

Status JsonDocument::parse(std::string_view text, const JsonOptions& options) {
  text_ = text;
  constexpr std::size_t kKeptNodes = std::size_t{1}
                                     << 20;  // one odd row should not hold its memory for the rest of the run
  if (nodes_.capacity() > kKeptNodes) std::vector<Node>().swap(nodes_);
  nodes_.clear();
  if (text.size() > std::numeric_limits<std::uint32_t>::max()) {
    return Status(Reason::kJsonRowTooLong, fmt::format("{} bytes; JSON texts go up to 4 GiB", text.size()));
  }
  if (!text.empty() && !simdjson::validate_utf8(text.data(), text.size())) {
    const std::size_t offset = first_invalid_utf8(text);
    const auto byte = static_cast<unsigned char>(offset < text.size() ? text[offset] : '\0');
    return Status(Reason::kJsonUtf8,
                  fmt::format("{}: byte 0x{:02X} is not UTF-8", describe_offset(text, offset), byte));
  }
  return JsonParser(*this, options).run();
}

JsonType JsonView::type() const { return document_->nodes_[node_].type; }

std::string_view JsonView::type_name() const {
  switch (type()) {
    case JsonType::kNull:
      return "null";
    case JsonType::kTrue:
    case JsonType::kFalse:
      return "a boolean";
    case JsonType::kInt:
    case JsonType::kFloat:
      return "a number";
    case JsonType::kString:
      return "a string";
    case JsonType::kArray:
      return "a list";
    case JsonType::kObject:
      break;
  }
  return "an object";
}

std::string_view JsonView::raw() const {
  const auto& node = document_->nodes_[node_];
  return {node.begin, node.n_bytes};
}

std::string JsonView::string(std::uint32_t* n_replaced) const {
  const std::string_view text = raw();
  if (!document_->nodes_[node_].is_escaped) return std::string(text);
  std::string out;
  out.reserve(text.size());
  const char* p = text.data();
  const char* const end = p + text.size();
  while (p != end) {
    const void* found = std::memchr(p, '\\', static_cast<std::size_t>(end - p));
    const char* const next = found == nullptr ? end : static_cast<const char*>(found);
    out.append(p, next);
    p = next;
    if (p == end) break;
    if (p[1] == 'u') {
      p = append_unicode_escape(p, end, out, n_replaced);
    } else {
      out.push_back(simple_escape(p[1]));
      p += 2;
    }
  }
  return out;
}

bool JsonView::string_is(std::string_view text) const {
  if (!document_->nodes_[node_].is_escaped) return raw() == text;
  return string() == text;
}

JsonView JsonView::first() const {
  const std::uint32_t end = document_->nodes_[node_].end;
  return node_ + 1 < end ? JsonView(document_, node_ + 1, end) : JsonView();
}

JsonView JsonView::next() const {
  const std::uint32_t next = document_->nodes_[node_].end;
  return next < end_ ? JsonView(document_, next, end_) : JsonView();
}

std::size_t JsonView::size() const {
  std::size_t n = 0;
  for (JsonView v = first(); v; v = v.next()) ++n;
  return is_object() ? n / 2 : n;
}

std::string JsonView::where() const {
  const auto& node = document_->nodes_[node_];
  // A string is shown from its quote on.
  const auto offset = static_cast<std::size_t>(node.begin - document_->text_.data()) - (is_string() ? 1 : 0);
  return describe_offset(document_->text_, offset);
}

}  // namespace stoker

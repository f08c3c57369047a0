#include "manifest/array_scanner.h"

#include <fmt/format.h>

namespace stoker {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr char kRefusedInStrings = '\x01';  // what a line end inside a string becomes

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

}  // namespace

bool ArrayScanner::begins_list(std::string_view head) {
  if (head.starts_with(kByteOrderMark)) head.remove_prefix(kByteOrderMark.size());
  const std::size_t first = head.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && head[first] == '[';
}

Status ArrayScanner::fail(const char* what) const {
  return Status(Reason::kManifest, fmt::format("line {}, byte {}: {}", line_, offset_, what));
}

void ArrayScanner::begin_element(char c) {
  element_ = {offset_, 0, line_};
  n_blanks_ = 0;
  depth_ = 0;
  is_in_string_ = c == '"';
  is_escaped_ = false;
  if (c == '{' || c == '[') depth_ = 1;
  out_.push_back(c);
  element_.n_bytes = 1;
  state_ = State::kElement;
}

void ArrayScanner::end_element() {
  element_.n_bytes -= n_blanks_;
  // The blanks before the comma may be in a piece that is written already; they are harmless at a line's end.
  out_.push_back('\n');
  at_.push_back(element_);
}

Status ArrayScanner::step(char c) {
  switch (state_) {
    case State::kBefore:
      // The mark of byte order, if there is one; begins_list has seen the bracket.
      if (is_blank(c) || (offset_ < 3 && c == kByteOrderMark[static_cast<std::size_t>(offset_)])) return {};
      if (c != '[') return fail("a JSON list should begin here");
      state_ = State::kFirst;
      return {};
    case State::kFirst:
    case State::kNext:
      if (is_blank(c)) return {};
      if (c == ']' && state_ == State::kFirst) {
        state_ = State::kAfter;
        return {};
      }
      if (c == ',' || c == ']' || c == '}' || c == ':') return fail("an element of the list is missing here");
      begin_element(c);
      return {};
    case State::kAfter:
      return is_blank(c) ? Status() : fail("the file goes on after its list");
    case State::kElement:
      break;
  }
  if (is_in_string_) {
    if (is_escaped_) {
      is_escaped_ = false;
    } else if (c == '\\') {
      is_escaped_ = true;
    } else if (c == '"') {
      is_in_string_ = false;
    }
    out_.push_back(c == '\n' ? kRefusedInStrings : c);
    n_blanks_ = 0;
    ++element_.n_bytes;
    return {};
  }
  if (depth_ == 0 && (c == ',' || c == ']')) {
    end_element();
    state_ = c == ',' ? State::kNext : State::kAfter;
    return {};
  }
  if (depth_ == 0 && c == '}') return fail("a bracket that nothing opened");
  if (c == '"') is_in_string_ = true;
  if (c == '{' || c == '[') ++depth_;
  if (c == '}' || c == ']') --depth_;
  n_blanks_ = is_blank(c) ? n_blanks_ + 1 : 0;
  out_.push_back(c == '\n' ? ' ' : c);
  ++element_.n_bytes;
  return {};
}

Status ArrayScanner::feed(std::string_view piece) {
  for (const char c : piece) {
    STOKER_CHECKED(step(c));
    ++offset_;
    if (c == '\n') ++line_;
  }
  return {};
}

Status ArrayScanner::finish() const {
  if (state_ == State::kAfter) return {};
  if (state_ == State::kElement) {
    return Status(Reason::kManifest, fmt::format("the list is not closed; its last element begins in line {}, byte {}",
                                                 element_.line, element_.offset));
  }
  return fail("the list is not closed");
}

}  // namespace stoker

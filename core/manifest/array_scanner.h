#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "manifest/index.h"

namespace stoker {

/// Cuts one JSON list, fed in pieces, into lines with one element each, in constant memory.
///
/// It finds where elements begin and end (brackets and strings), no more: each is judged when it is read, as a line of
/// a JSONL file would be. Line ends inside an element become blanks, and inside a string, where JSON has none, a
/// control character that is refused all the same, so that an element has the same bytes at the same distances as in
/// the list.
class ArrayScanner {
 public:
  /// @param out  Gets the lines, each with its line end; emptied by whoever feeds.
  /// @param at   Gets where each element begins and ends in the list.
  ArrayScanner(std::string& out, std::vector<RowLocation>& at) : out_(out), at_(at) {}

  /// True if `head`, the first bytes of a file, begins a list and not a row.
  static bool begins_list(std::string_view head);

  /// @return MANIFEST for what is no list of elements; the message has line and byte.
  Status feed(std::string_view piece);
  /// @return MANIFEST if the list is not closed.
  Status finish() const;

 private:
  enum class State : std::uint8_t { kBefore, kFirst, kElement, kNext, kAfter };

  Status step(char c);
  void begin_element(char c);
  void end_element();
  Status fail(const char* what) const;

  std::string& out_;
  std::vector<RowLocation>& at_;
  State state_ = State::kBefore;
  std::uint64_t offset_ = 0;
  std::uint64_t line_ = 1;
  RowLocation element_{};     // the one under way
  std::size_t n_blanks_ = 0;  // at its end so far
  int depth_ = 0;             // of brackets inside the element
  bool is_in_string_ = false;
  bool is_escaped_ = false;
};

}  // namespace stoker

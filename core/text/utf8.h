#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace stoker::text {

/// A half-open range of bytes.
struct ByteSpan {
  std::size_t begin = 0;
  std::size_t end = 0;
};

/// Whether `text` is well-formed UTF-8 (no surrogates, nothing overlong, nothing above U+10FFFF).
bool is_valid_utf8(std::string_view text);

/// Appends `text` to `out` with every ill-formed sequence replaced by one U+FFFD. A sequence is a surrogate half in its
/// three-byte form, or the longest prefix of a well-formed sequence that stands there (Unicode 16.0, section 3.9, table
/// 3-8), at least a byte. `spans`, sorted and apart, are byte ranges of `text`; they are moved to where their text
/// went. May be empty.
/// @return how many sequences were replaced.
std::size_t repair_utf8(std::string_view text, std::string& out, std::vector<ByteSpan>& spans);

}  // namespace stoker::text

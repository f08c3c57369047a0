#include "text/utf8.h"

#include <simdjson.h>

namespace stoker::text {
namespace {

struct Sequence {
  std::size_t n_bytes;
  bool well_formed;
};

unsigned byte_at(std::string_view text, std::size_t i) {
  return i < text.size() ? static_cast<unsigned char>(text[i]) : 0;  // 0 never continues a sequence
}
bool continues(unsigned byte) { return (byte & 0xC0) == 0x80; }

/// What starts at `i`: lead byte decides the length and the range of the second byte.
Sequence sequence_at(std::string_view text, std::size_t i) {
  const unsigned lead = byte_at(text, i);
  if (lead < 0x80) return {1, true};
  if (lead < 0xC2 || lead > 0xF4) return {1, false};
  const unsigned second = byte_at(text, i + 1);
  if (lead < 0xE0) return continues(second) ? Sequence{2, true} : Sequence{1, false};
  if (lead == 0xED && second >= 0xA0 && continues(second) && continues(byte_at(text, i + 2))) return {3, false};
  const unsigned low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  if (second < low || second > high) return {1, false};
  if (!continues(byte_at(text, i + 2))) return {2, false};
  if (lead < 0xF0) return {3, true};
  return continues(byte_at(text, i + 3)) ? Sequence{4, true} : Sequence{3, false};
}

}  // namespace

bool is_valid_utf8(std::string_view text) { return simdjson::validate_utf8(text.data(), text.size()); }

std::size_t repair_utf8(std::string_view text, std::string& out, std::vector<ByteSpan>& spans) {
  std::size_t n_replaced = 0;
  std::size_t begins = 0, ends = 0;  // the next span whose begin, or end, has not been passed
  const std::size_t base = out.size();
  const auto move_bounds = [&](std::size_t until) {
    for (; begins < spans.size() && spans[begins].begin <= until; ++begins) spans[begins].begin = out.size() - base;
    for (; ends < begins && spans[ends].end <= until; ++ends) spans[ends].end = out.size() - base;
  };
  for (std::size_t i = 0; i < text.size();) {
    move_bounds(i);
    const Sequence s = sequence_at(text, i);
    if (s.well_formed) {
      out.append(text.substr(i, s.n_bytes));
    } else {
      out.append("\xEF\xBF\xBD");
      ++n_replaced;
    }
    i += s.n_bytes;
  }
  move_bounds(text.size());
  return n_replaced;
}

}  // namespace stoker::text

#include "text/pretokenize.h"

namespace stoker::text {
namespace {

using unicode::Class;

/// Length of a contraction's letters after the apostrophe at `p`, or 0. U+017F counts as an s, as Unicode's case
/// folding has it.
std::size_t contraction(const char* p, const char* end) {
  const auto at = [&](int i) -> int { return p + i < end ? static_cast<unsigned char>(p[i]) : 0; };
  const auto lower_at = [&](int i) {
    const int c = at(i);
    return c < 128 ? c | 32 : c;
  };
  switch (lower_at(1)) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return 1;
    case 'r':
    case 'v':
      return lower_at(2) == 'e' ? 2 : 0;
    case 'l':
      return lower_at(2) == 'l' ? 2 : 0;
    case 0xC5:
      return at(2) == 0xBF ? 2 : 0;
    default:
      return 0;
  }
}

bool is_line_end(char c) { return c == '\r' || c == '\n'; }

}  // namespace

Class PretokenizerView::class_at(const char* p, unsigned& n) const {
  if (p >= end_) return n = 0, Class::kSpace;
  return unicode::class_of(unicode::decode(p, n));
}

const char* PretokenizerView::letters_end(const char* p) const {
  while (true) {
    const unsigned n_ascii = ascii_letters(p);
    p += n_ascii;
    if (p >= end_) return end_;
    if (n_ascii == kLane) continue;
    if (static_cast<signed char>(*p) >= 0) return p;
    do {
      unsigned n = 0;
      if (unicode::class_of(unicode::decode(p, n)) != Class::kLetter) return p;
      p += n;
      if (p >= end_) return end_;
    } while (static_cast<signed char>(*p) < 0);
  }
}

const char* PretokenizerView::others_end(const char* p) const {
  unsigned n = 0;
  while (p < end_ && class_at(p, n) == Class::kOther) p += n;
  while (p < end_ && is_line_end(*p)) ++p;
  return p;
}

const char* PretokenizerView::space_match_end(const char* p) const {
  const char* after_line_end = nullptr;
  const char* before_last = p;
  const char* q = p;
  unsigned n = 0;
  while (q < end_ && class_at(q, n) == Class::kSpace) {
    before_last = q;
    if (is_line_end(*q)) after_line_end = q + 1;
    q += n;
  }
  if (after_line_end != nullptr) return after_line_end;
  return q == end_ || before_last == p ? q
                                       : before_last;  // the last one goes with what follows, if it is not the only one
}

const char* PretokenizerView::other_match_end(const char* p) const {
  if (*p == '\'') {
    if (const std::size_t n = contraction(p, end_)) return p + 1 + n;
  }
  unsigned n = 0;
  const Class first = class_at(p, n);
  if (first == Class::kLetter) return letters_end(p + n);
  if (first == Class::kNumber) return p + n;
  unsigned n_next = 0;
  const Class next = is_line_end(*p) ? Class::kSpace : class_at(p + n, n_next);
  if (next == Class::kLetter) return letters_end(p + n + n_next);
  if (first == Class::kOther) return others_end(p + n);
  if (*p == ' ' && next == Class::kOther) return others_end(p + n + n_next);
  return space_match_end(p);
}

}  // namespace stoker::text

#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "text/unicode.h"
#if defined(__SSE2__)
#include <emmintrin.h>
#else
#include <cstring>
#endif

/// The pattern of Qwen2 and later, cut by hand:
///   (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
namespace stoker::text {

/// Bytes that may be read after the end of a text given to Pretokenizer; their values do not matter.
inline constexpr std::size_t kTextPadding = 32;

/// Cuts valid UTF-8 into the matches of the pattern, which leave nothing out.
/// Memory: kTextPadding bytes behind `end` are read. Threads: any; holds no state but its end.
class PretokenizerView {
 public:
  explicit PretokenizerView(const char* end) : end_(end) {}

  /// The end of the match that begins at `p` (< end).
  const char* match_end(const char* p) const {
    // A run of letters, with at most one other character before it, is most of any text: no branch on which of the two
    // it is.
    const unsigned skip = kSkip[static_cast<unsigned char>(*p)];
    if (skip <= 1) {
      const char* const q = p + skip;
      const unsigned n = ascii_letters(q);
      if (n != 0 && n < kLane && static_cast<signed char>(q[n]) >= 0 && q + n <= end_) return q + n;
    }
    return other_match_end(p);
  }

 private:
  static constexpr unsigned kLane = 16;
  static constexpr std::uint8_t kNever = 2;
  /// How many bytes stand before the letters of the second alternative when the match begins with this byte; kNever:
  /// look closely.
  static constexpr std::array<std::uint8_t, 256> kSkip = [] {
    std::array<std::uint8_t, 256> skip{};
    for (unsigned c = 0; c < 256; ++c) {
      const bool letter = (c | 32) >= 'a' && (c | 32) <= 'z';
      const bool needs_care = c >= 128 || (c >= '0' && c <= '9') || c == '\r' || c == '\n' || c == '\'';
      skip[c] = letter ? 0 : needs_care ? kNever : 1;
    }
    return skip;
  }();

  /// How many of the next kLane bytes are ASCII letters, counted up to the first that is not.
  static unsigned ascii_letters(const char* p) {
#if defined(__SSE2__)
    const __m128i lower = _mm_or_si128(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)), _mm_set1_epi8(0x20));
    const __m128i shifted =
        _mm_add_epi8(lower, _mm_set1_epi8(static_cast<char>(-128 - 'a')));  // 'a' to 'z': -128 to -103
    const auto mask = static_cast<unsigned>(_mm_movemask_epi8(_mm_cmplt_epi8(shifted, _mm_set1_epi8(-128 + 26))));
    return static_cast<unsigned>(std::countr_one(mask));
#else
    unsigned n = 0;
    while (n < kLane && static_cast<unsigned char>((p[n] | 32) - 'a') < 26) ++n;
    return n;
#endif
  }

  const char* other_match_end(const char* p) const;  // whatever match_end does not decide itself
  const char* letters_end(const char* p) const;
  const char* others_end(const char* p) const;       // [^\s\p{L}\p{N}]*[\r\n]*
  const char* space_match_end(const char* p) const;  // the last three alternatives
  /// Class of the character at `p`, `n` its bytes; at the end n is 0 and the class space, which ends every other run.
  unicode::Class class_at(const char* p, unsigned& n) const;

  const char* end_;
};

}  // namespace stoker::text

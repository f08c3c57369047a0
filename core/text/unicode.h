#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

/// What the tokenizer knows of Unicode: classes of version 16.0, normalisation data of version 9.0, as the reference
/// has them. The tables are made by tools/make_unicode_tables.py.
namespace stoker::text::unicode {

enum class Class : std::uint8_t { kOther, kLetter, kNumber, kSpace };

inline constexpr std::uint8_t kClassMask = 3;
inline constexpr std::uint8_t kCombining = 4;  ///< the canonical combining class is not 0
inline constexpr std::uint8_t kNotQuick = 8;   ///< NFC changes it, or may compose it with what stands before
inline constexpr unsigned kBlockBits = 7;

extern const std::uint8_t kFlagIndex[];
extern const std::uint8_t kFlagBlocks[];
extern const std::uint8_t kCombiningIndex[];
extern const std::uint8_t kCombiningBlocks[];

struct Decomposition {
  char32_t from;
  std::uint16_t offset;  ///< into kDecompositionPool
  std::uint16_t length;
};
struct Composition {
  char32_t first, second, composite;
};
extern const char32_t kDecompositionPool[];
extern const std::span<const Decomposition> kDecompositions;  ///< full and canonical, sorted, without Hangul
extern const std::span<const Composition> kCompositions;      ///< sorted by (first, second), without Hangul

/// The class bits and flags of a code point below 0x110000.
inline std::uint8_t flags_of(char32_t cp) {
  return kFlagBlocks[(std::size_t{kFlagIndex[cp >> kBlockBits]} << kBlockBits) + (cp & ((1U << kBlockBits) - 1))];
}
inline Class class_of(char32_t cp) { return static_cast<Class>(flags_of(cp) & kClassMask); }
inline std::uint8_t combining_class(char32_t cp) {
  return kCombiningBlocks[(std::size_t{kCombiningIndex[cp >> kBlockBits]} << kBlockBits) +
                          (cp & ((1U << kBlockBits) - 1))];
}

/// The code point that starts at `p`, in valid UTF-8; `n` gets its length in bytes.
inline char32_t decode(const char* p, unsigned& n) {
  const auto b = [p](unsigned i) { return static_cast<char32_t>(static_cast<unsigned char>(p[i])); };
  const char32_t lead = b(0);
  if (lead < 0x80) return n = 1, lead;
  if (lead < 0xE0) return n = 2, ((lead & 0x1F) << 6) | (b(1) & 0x3F);
  if (lead < 0xF0) return n = 3, ((lead & 0x0F) << 12) | ((b(1) & 0x3F) << 6) | (b(2) & 0x3F);
  return n = 4, ((lead & 0x07) << 18) | ((b(1) & 0x3F) << 12) | ((b(2) & 0x3F) << 6) | (b(3) & 0x3F);
}

}  // namespace stoker::text::unicode

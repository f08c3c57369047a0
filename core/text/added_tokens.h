#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/utf8.h"

namespace stoker::text {

/// A token that is cut out of the raw text before anything else happens to it.
struct AddedToken {
  std::int32_t id = 0;
  std::string content;      ///< at least one byte
  bool is_guarded = false;  ///< ordinary text inside literal ranges
};

/// Finds added tokens in text: leftmost first, the longest of those that begin at one place.
/// Immutable. Threads: any.
class AddedTokens {
 public:
  AddedTokens() = default;
  explicit AddedTokens(std::vector<AddedToken> tokens);

  struct Match {
    std::size_t begin = 0, end = 0;
    std::int32_t id = -1;  ///< -1: none; begin and end are then the text's end
  };
  /// Walks one text from left to right. Borrows everything that it is made of.
  class WalkView {
   public:
    WalkView(const AddedTokens& tokens, std::string_view text, const ByteSpan* literal, std::size_t n_literal)
        : tokens_(tokens), text_(text), literal_(literal), literal_end_(literal + n_literal) {}
    Match next();
    /// Guarded tokens passed over so far.
    std::size_t n_guarded() const { return n_guarded_; }

   private:
    bool touches_literal(std::size_t begin, std::size_t end);

    const AddedTokens& tokens_;
    const std::string_view text_;
    const ByteSpan* literal_;  // the first range that ends after at_
    const ByteSpan* const literal_end_;
    std::size_t at_ = 0;
    std::size_t n_guarded_ = 0;
  };

  const std::vector<AddedToken>& all() const { return tokens_; }

 private:
  /// The next place at or after `from` where a token could begin, or the text's end.
  std::size_t next_start(std::string_view text, std::size_t from) const;

  std::vector<AddedToken> tokens_;  // longest first
  std::array<bool, 256> begins_{};  // by first byte
  std::array<bool, 256> second_{};  // by second byte; all true if a token has only one
  int only_first_ = -1;             // the first byte, if all tokens have the same
};

}  // namespace stoker::text

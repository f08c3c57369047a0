#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/huge_pages.h"
#include "text/word_index.h"

namespace stoker::text {

/// A merge of the file: two vocabulary entries that become one.
struct Merge {
  std::int32_t left = 0;
  std::int32_t right = 0;
  std::int32_t merged = 0;
};

/// Byte-pair encoding of one pre-token: the lowest-ranked merge first, leftmost among equals, until none applies.
/// Immutable once made. Threads: any, each with its own Scratch.
class Bpe {
 public:
  /// Ids and ranks are below this.
  static constexpr std::int32_t kIdLimit = 1 << 21;

  static constexpr std::size_t kShortBytes = 64;

  /// A pre-token of at most kShortBytes bytes while its merges are made. Symbols keep the place of their first byte.
  class ShortWord {
   public:
    /// The ids once all merges are made.
    void append_to(std::vector<std::int32_t>& ids) const {
      for (std::size_t i = 0; i < n_bytes; i = next[i]) ids.push_back(symbols[i]);
    }

   private:
    friend class Bpe;
    // A place's key is (rank of its merge with the next symbol, place): the smallest key is the merge to make, and a
    // vector minimum over all of them costs less than any bookkeeping.
    alignas(32) std::array<std::int32_t, kShortBytes> keys;
    std::array<std::int32_t, kShortBytes> symbols;
    std::array<std::uint8_t, kShortBytes + 1> next, previous;  // place n_bytes is the end of both
    std::uint8_t n_bytes = 0;
    std::uint8_t changed = 0;  // where the last merge was made
  };

  /// One thread's working memory; grows to the longest pre-token seen.
  class Scratch {
   private:
    friend class Bpe;
    struct Symbol {
      std::int32_t id;
      std::uint32_t previous, next;
    };
    struct Candidate {
      std::uint32_t rank, at;
      std::int32_t left, right;
    };
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
  };

  /// @param words   closed, every byte alone among its entries.
  /// @param merges  in order of rank.
  /// @return kTokenizer if a byte is missing, or there are too many entries.
  static Result<Bpe> make(WordIndex words, std::span<const Merge> merges);

  /// Appends the ids of one pre-token of at least one byte. Linear in its length, times its logarithm beyond
  /// kShortBytes.
  void encode(std::string_view word, std::vector<std::int32_t>& ids, Scratch& scratch) const;
  /// The same without the look at whole entries; for tests, and to find out which entries merges reach.
  void merge(std::string_view word, std::vector<std::int32_t>& ids, Scratch& scratch) const;

  /// The entry that is the whole word, if merges reach it; else -1.
  std::int32_t whole(std::string_view word) const {
    const std::int32_t id = words_.find(word);
    return id >= 0 && is_reached_[static_cast<std::size_t>(id)] ? id : -1;
  }
  /// Sets a pre-token of 1 to kShortBytes bytes up for merge_together().
  void begin(std::string_view word, ShortWord& state) const;
  /// Makes all merges of all words, one of each in turn: nearly all of a merge's time is memory's answer to a look-up,
  /// and this way the words wait for theirs together.
  void merge_together(std::span<ShortWord> words) const;

  const WordIndex& words() const { return words_; }

 private:
  static constexpr std::uint32_t kNoRank = kIdLimit - 1;

  Bpe() = default;
  void index_merges(std::span<const Merge> merges);
  /// Rank of the merge of two symbols, or kNoRank.
  std::uint32_t rank_of(std::int32_t left, std::int32_t right) const;
  void prefetch(std::int32_t left, std::int32_t right) const;
  std::int32_t merged_by(std::uint32_t rank) const {
    return first_merged_ >= 0 ? first_merged_ + static_cast<std::int32_t>(rank) : merged_[rank];
  }
  /// Makes the word's next merge and asks memory for what renew() will look up; false if there is none.
  bool step(ShortWord& word) const;
  /// Looks up the two pairs that the last merge changed.
  void renew(ShortWord& word) const;
  void merge_long(std::string_view word, std::vector<std::int32_t>& ids, Scratch& scratch) const;

  WordIndex words_;
  std::vector<bool> is_reached_;  // by id: merging the entry's bytes gives the entry
  std::array<std::int32_t, 256> byte_ids_{};
  std::vector<std::uint32_t> byte_pair_ranks_;  // (256, 256)
  // Open addressing, a power of two; left << 42 | right << 21 | rank in one word keeps it small enough for the cache.
  HugeVector<std::uint64_t> pairs_;
  unsigned pair_shift_ = 0;
  std::vector<std::int32_t> merged_;  // by rank
  std::int32_t first_merged_ =
      -1;  // what rank 0 makes, if every next rank makes the next id: then merged_ need not be read
};

}  // namespace stoker::text

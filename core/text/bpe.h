#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

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

  /// @param words   (id, bytes) of each entry, every byte alone among them; ids are below 2^24, distinct, dense enough
  /// to index by.
  /// @param merges  in order of rank.
  /// @return kTokenizer if a byte is missing.
  static Result<Bpe> make(std::span<const std::pair<std::int32_t, std::string>> words, std::span<const Merge> merges);

  /// Appends the ids of one pre-token of at least one byte. Linear in its length, times its logarithm beyond 64 bytes.
  void encode(std::string_view word, std::vector<std::int32_t>& ids, Scratch& scratch) const;
  /// The same without the look at whole entries; for tests, and to find out which entries merges reach.
  void merge(std::string_view word, std::vector<std::int32_t>& ids, Scratch& scratch) const;

  /// The entry with exactly these bytes, or -1.
  std::int32_t find(std::string_view word) const;
  std::int32_t id_of_byte(unsigned char byte) const { return byte_ids_[byte]; }

 private:
  static constexpr std::uint32_t kNoRank = 0xFFFFFFFF;
  static constexpr std::size_t kShortBytes = 64;

  struct PairSlot {
    std::uint64_t key = kNoKey;  // left << 32 | right
    std::uint32_t rank = kNoRank;
    std::int32_t merged = 0;
  };
  static constexpr std::uint64_t kNoKey = 0xFFFFFFFFFFFFFFFF;
  struct Word {
    std::uint32_t begin = 0;  // into bytes_
    std::uint32_t length = 0;
    bool is_reached = false;  // merge() of its bytes gives itself alone
  };

  Bpe() = default;
  const PairSlot& pair(std::int32_t left, std::int32_t right) const;
  std::uint32_t rank_of(std::int32_t left, std::int32_t right) const { return pair(left, right).rank; }
  void merge_short(std::string_view word, std::vector<std::int32_t>& ids) const;
  void merge_long(std::string_view word, std::vector<std::int32_t>& ids, Scratch& scratch) const;
  std::string_view bytes_of(const Word& word) const { return {bytes_.data() + word.begin, word.length}; }
  void index_words();
  void index_merges(std::span<const Merge> merges);

  std::array<std::int32_t, 256> byte_ids_{};
  std::vector<std::uint32_t> byte_pair_ranks_;  // (256, 256)
  std::vector<PairSlot> pairs_;                 // open addressing; a power of two
  unsigned pair_shift_ = 0;
  std::string bytes_;
  std::vector<Word> words_;               // by id
  std::vector<std::int32_t> word_slots_;  // open addressing: id or -1; a power of two
};

}  // namespace stoker::text

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/huge_pages.h"

namespace stoker::text {

/// The entries of a vocabulary, from id to bytes and back. Filled, then closed, then only read. Threads: any, once
/// closed.
class WordIndex {
 public:
  /// @param id  0 or more; no id twice.  @param bytes  at least one; no entry twice.
  void add(std::int32_t id, std::string_view bytes);
  /// Makes find() work.
  void close();

  /// The entry with exactly these bytes, or -1.
  std::int32_t find(std::string_view bytes) const;
  /// Empty for an id that no entry has.
  std::string_view bytes_of(std::int32_t id) const {
    const Word& word = words_[static_cast<std::size_t>(id)];
    return {blob_.data() + word.begin, word.n_bytes};
  }
  /// One more than the largest id.
  std::int32_t end_id() const { return static_cast<std::int32_t>(words_.size()); }

 private:
  struct Word {
    std::uint32_t begin = 0, n_bytes = 0;
  };
  struct Slot {
    std::uint32_t mark = 0;  // of the hash: most words that are not here are told so without a look at any bytes
    std::int32_t id = -1;
  };

  std::string blob_;
  std::vector<Word> words_;  // by id
  HugeVector<Slot> slots_;   // open addressing; a power of two
};

}  // namespace stoker::text

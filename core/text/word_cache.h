#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "text/huge_pages.h"

namespace stoker::text {

/// The ids of words that one thread met lately. Bounded: a new word takes the place of an older one. Text is
/// Zipf-distributed, so nearly every word of running text is found here, in one cache line. Bytes are compared, never
/// only hashes.
class WordCache {
 public:
  static constexpr std::size_t kShortBytes = 15;  ///< longest word of a short entry
  static constexpr std::size_t kShortIds = 3;
  static constexpr std::size_t kMediumBytes = 32;
  static constexpr std::size_t kMediumIds = 7;

  struct Key {
    std::uint64_t low, high;  // the bytes, zeros behind them; the top byte is the length
  };
  struct Short {
    Key key{0, 0};  // no word has length 0
    std::array<std::int32_t, kShortIds> ids{};
    std::uint32_t n_ids = 0;
  };

  WordCache() : tables_(1) {}
  void clear() { tables_.assign(1, {}); }

  /// @param word  1 to kShortBytes bytes, with 16 readable ones from its beginning.
  static Key key_of(const char* word, std::size_t n_bytes) {
    Key key;
    std::memcpy(&key, word, sizeof key);
    key.low &= kMasks[n_bytes].low;
    key.high = (key.high & kMasks[n_bytes].high) | (static_cast<std::uint64_t>(n_bytes) << 56);
    return key;
  }
  /// The entry with this key, or null. Valid until the next insert.
  const Short* find(const Key& key) const {
    const Bucket& bucket = tables_[0].buckets[bucket_of(key)];
    for (const Short& entry : bucket.ways) {
      if (((entry.key.low ^ key.low) | (entry.key.high ^ key.high)) == 0) return &entry;
    }
    return nullptr;
  }
  void insert(const Key& key, std::span<const std::int32_t> ids);
  /// Has the memory of an entry fetched, so that a find() some words later need not wait for it.
  void prefetch(const Key& key) const { __builtin_prefetch(&tables_[0].buckets[bucket_of(key)]); }

  /// The ids of a word of 1 to kMediumBytes bytes; empty: not here.
  std::span<const std::int32_t> find(std::string_view word) const;
  void insert(std::string_view word, std::span<const std::int32_t> ids);
  void prefetch(std::string_view word) const;

 private:
  static constexpr std::size_t kShortBuckets = 1 << 14;
  static constexpr std::size_t kMediumSlots = 1 << 14;
  struct alignas(64) Bucket {
    std::array<Short, 2> ways;
  };
  struct alignas(64) Medium {
    std::array<char, kMediumBytes> bytes{};
    std::array<std::int32_t, kMediumIds> ids{};
    std::uint8_t n_bytes = 0;
    std::uint8_t n_ids = 0;
  };
  struct Tables {
    std::array<Bucket, kShortBuckets> buckets{};
    std::array<Medium, kMediumSlots> medium{};
  };
  static constexpr std::array<Key, kShortBytes + 1> kMasks = [] {
    std::array<Key, kShortBytes + 1> masks{};
    for (std::size_t n = 0; n <= kShortBytes; ++n) {
      const auto ones = [](std::size_t bytes) { return bytes == 0 ? 0 : ~std::uint64_t{0} >> (64 - 8 * bytes); };
      masks[n] = {ones(n < 8 ? n : 8), ones(n < 8 ? 0 : n - 8)};
    }
    return masks;
  }();
  static std::size_t bucket_of(const Key& key) {
    return (key.low * 0x9E3779B97F4A7C15 + key.high * 0xC2B2AE3D27D4EB4F) >> (64 - 14);
  }
  static std::size_t slot_of(std::string_view word);

  HugeVector<Tables> tables_;  // one, exactly as large as a huge page
};

}  // namespace stoker::text

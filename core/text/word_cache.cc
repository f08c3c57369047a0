#include "text/word_cache.h"

#include <xxhash.h>

#include <algorithm>

namespace stoker::text {

void WordCache::insert(const Key& key, std::span<const std::int32_t> ids) {
  Bucket& bucket = tables_[0].buckets[bucket_of(key)];
  bucket.ways[1] = bucket.ways[0];
  Short& entry = bucket.ways[0];
  entry.key = key;
  entry.n_ids = static_cast<std::uint32_t>(ids.size());
  std::copy(ids.begin(), ids.end(), entry.ids.begin());
}

std::size_t WordCache::slot_of(std::string_view word) {
  return XXH3_64bits(word.data(), word.size()) & (kMediumSlots - 1);
}

void WordCache::prefetch(std::string_view word) const { __builtin_prefetch(&tables_[0].medium[slot_of(word)]); }

std::span<const std::int32_t> WordCache::find(std::string_view word) const {
  const Medium& entry = tables_[0].medium[slot_of(word)];
  if (word != std::string_view(entry.bytes.data(), entry.n_bytes)) return {};
  return {entry.ids.data(), entry.n_ids};
}

void WordCache::insert(std::string_view word, std::span<const std::int32_t> ids) {
  Medium& entry = tables_[0].medium[slot_of(word)];
  entry.n_bytes = static_cast<std::uint8_t>(word.size());
  entry.n_ids = static_cast<std::uint8_t>(ids.size());
  std::copy(word.begin(), word.end(), entry.bytes.begin());
  std::copy(ids.begin(), ids.end(), entry.ids.begin());
}

}  // namespace stoker::text

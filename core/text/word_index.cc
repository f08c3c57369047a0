#include "text/word_index.h"

#include <xxhash.h>

#include <bit>

namespace stoker::text {

void WordIndex::add(std::int32_t id, std::string_view bytes) {
  const auto at = static_cast<std::size_t>(id);
  if (at >= words_.size()) words_.resize(at + 1);
  words_[at] = {static_cast<std::uint32_t>(blob_.size()), static_cast<std::uint32_t>(bytes.size())};
  blob_ += bytes;
}

void WordIndex::close() {
  slots_.assign(std::bit_ceil(words_.size() * 2 + 1), {});
  const std::size_t mask = slots_.size() - 1;
  for (std::int32_t id = 0; id < end_id(); ++id) {
    const std::string_view bytes = bytes_of(id);
    if (bytes.empty()) continue;
    const std::uint64_t hash = XXH3_64bits(bytes.data(), bytes.size());
    std::size_t at = hash & mask;
    while (slots_[at].id >= 0) at = (at + 1) & mask;
    slots_[at] = {static_cast<std::uint32_t>(hash >> 32), id};
  }
}

std::int32_t WordIndex::find(std::string_view bytes) const {
  const std::size_t mask = slots_.size() - 1;
  const std::uint64_t hash = XXH3_64bits(bytes.data(), bytes.size());
  for (std::size_t at = hash & mask; slots_[at].id >= 0; at = (at + 1) & mask) {
    if (slots_[at].mark == static_cast<std::uint32_t>(hash >> 32) && bytes_of(slots_[at].id) == bytes) {
      return slots_[at].id;
    }
  }
  return -1;
}

}  // namespace stoker::text

#include "text/bpe.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>

namespace stoker::text {
namespace {

std::uint64_t key_of(std::int32_t left, std::int32_t right) {
  return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32) | static_cast<std::uint32_t>(right);
}
std::uint64_t mixed(std::uint64_t key) { return (key ^ (key >> 29)) * 0x9E3779B97F4A7C15; }

}  // namespace

Result<Bpe> Bpe::make(std::span<const std::pair<std::int32_t, std::string>> words, std::span<const Merge> merges) {
  Bpe bpe;
  bpe.byte_ids_.fill(-1);
  for (const auto& [id, bytes] : words) {
    const auto at = static_cast<std::size_t>(id);
    if (at >= bpe.words_.size()) bpe.words_.resize(at + 1);
    bpe.words_[at] = {static_cast<std::uint32_t>(bpe.bytes_.size()), static_cast<std::uint32_t>(bytes.size()), false};
    bpe.bytes_ += bytes;
    if (bytes.size() == 1) bpe.byte_ids_[static_cast<unsigned char>(bytes[0])] = id;
  }
  for (unsigned b = 0; b < 256; ++b) {
    if (bpe.byte_ids_[b] < 0) {
      return Status(Reason::kTokenizer, "model.vocab: no entry for the single byte " + std::to_string(b));
    }
  }
  bpe.index_words();
  bpe.index_merges(merges);
  Scratch scratch;
  std::vector<std::int32_t> ids;
  for (std::size_t id = 0; id < bpe.words_.size(); ++id) {
    if (bpe.words_[id].length == 0) continue;
    ids.clear();
    bpe.merge(bpe.bytes_of(bpe.words_[id]), ids, scratch);
    bpe.words_[id].is_reached = ids.size() == 1;
  }
  return bpe;
}

void Bpe::index_words() {
  word_slots_.assign(std::bit_ceil(words_.size() * 2), -1);
  const std::size_t mask = word_slots_.size() - 1;
  for (std::size_t id = 0; id < words_.size(); ++id) {
    if (words_[id].length == 0) continue;
    std::size_t slot = XXH3_64bits(bytes_.data() + words_[id].begin, words_[id].length) & mask;
    while (word_slots_[slot] >= 0) slot = (slot + 1) & mask;
    word_slots_[slot] = static_cast<std::int32_t>(id);
  }
}

void Bpe::index_merges(std::span<const Merge> merges) {
  const std::size_t n_slots = std::bit_ceil(merges.size() * 2 + 2);
  pairs_.assign(n_slots, {});
  pair_shift_ = 64 - static_cast<unsigned>(std::countr_zero(n_slots));
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const std::uint64_t key = key_of(merges[rank].left, merges[rank].right);
    std::size_t slot = mixed(key) >> pair_shift_;
    while (pairs_[slot].key != kNoKey && pairs_[slot].key != key) slot = (slot + 1) & (n_slots - 1);
    pairs_[slot] = {key, static_cast<std::uint32_t>(rank), merges[rank].merged};
  }
  byte_pair_ranks_.resize(256 * 256);
  for (unsigned a = 0; a < 256; ++a) {
    for (unsigned b = 0; b < 256; ++b) byte_pair_ranks_[a * 256 + b] = rank_of(byte_ids_[a], byte_ids_[b]);
  }
}

const Bpe::PairSlot& Bpe::pair(std::int32_t left, std::int32_t right) const {
  const std::uint64_t key = key_of(left, right);
  std::size_t slot = mixed(key) >> pair_shift_;
  while (pairs_[slot].key != key && pairs_[slot].key != kNoKey) slot = (slot + 1) & (pairs_.size() - 1);
  return pairs_[slot];
}

std::int32_t Bpe::find(std::string_view word) const {
  const std::size_t mask = word_slots_.size() - 1;
  for (std::size_t slot = XXH3_64bits(word.data(), word.size()) & mask; word_slots_[slot] >= 0;
       slot = (slot + 1) & mask) {
    if (bytes_of(words_[static_cast<std::size_t>(word_slots_[slot])]) == word) return word_slots_[slot];
  }
  return -1;
}

void Bpe::encode(std::string_view word, std::vector<std::int32_t>& ids, Scratch& scratch) const {
  if (const std::int32_t id = find(word); id >= 0 && words_[static_cast<std::size_t>(id)].is_reached) {
    ids.push_back(id);
    return;
  }
  merge(word, ids, scratch);
}

void Bpe::merge(std::string_view word, std::vector<std::int32_t>& ids, Scratch& scratch) const {
  if (word.size() <= kShortBytes) return merge_short(word, ids);
  merge_long(word, ids, scratch);
}

void Bpe::merge_short(std::string_view word, std::vector<std::int32_t>& ids) const {
  std::array<std::int32_t, kShortBytes> symbols;
  std::array<std::uint32_t, kShortBytes> ranks;  // of the merge of symbol i with symbol i + 1
  std::size_t n = word.size();
  for (std::size_t i = 0; i < n; ++i) symbols[i] = byte_ids_[static_cast<unsigned char>(word[i])];
  for (std::size_t i = 0; i + 1 < n; ++i) {
    ranks[i] = byte_pair_ranks_[static_cast<unsigned char>(word[i]) * 256U + static_cast<unsigned char>(word[i + 1])];
  }
  while (n > 1) {
    const auto last = ranks.begin() + static_cast<std::ptrdiff_t>(n - 1);
    const auto at = std::min_element(ranks.begin(), last);
    if (*at == kNoRank) break;
    const auto i = static_cast<std::size_t>(at - ranks.begin());
    symbols[i] = pair(symbols[i], symbols[i + 1]).merged;
    std::copy(symbols.begin() + i + 2, symbols.begin() + n, symbols.begin() + i + 1);
    std::copy(at + 1, last, at);
    --n;
    if (i + 1 < n) ranks[i] = rank_of(symbols[i], symbols[i + 1]);
    if (i > 0) ranks[i - 1] = rank_of(symbols[i - 1], symbols[i]);
  }
  ids.insert(ids.end(), symbols.begin(), symbols.begin() + static_cast<std::ptrdiff_t>(n));
}

void Bpe::merge_long(std::string_view word, std::vector<std::int32_t>& ids, Scratch& scratch) const {
  constexpr std::uint32_t kNone = 0xFFFFFFFF;
  constexpr std::int32_t kGone = -1;
  auto& symbols = scratch.symbols;
  auto& heap = scratch.heap;
  const auto later = [](const Scratch::Candidate& a, const Scratch::Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
  };
  const auto consider = [&](std::uint32_t at) {
    if (at == kNone || symbols[at].next == kNone) return false;
    const std::int32_t left = symbols[at].id, right = symbols[symbols[at].next].id;
    const std::uint32_t rank = rank_of(left, right);
    if (rank == kNoRank) return false;
    heap.push_back({rank, at, left, right});
    return true;
  };

  const auto n = static_cast<std::uint32_t>(word.size());
  symbols.resize(n);
  heap.clear();
  for (std::uint32_t i = 0; i < n; ++i) {
    symbols[i] = {byte_ids_[static_cast<unsigned char>(word[i])], i == 0 ? kNone : i - 1, i + 1 == n ? kNone : i + 1};
  }
  for (std::uint32_t i = 0; i < n; ++i) consider(i);
  std::make_heap(heap.begin(), heap.end(), later);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const Scratch::Candidate best = heap.back();
    heap.pop_back();
    Scratch::Symbol& left = symbols[best.at];
    // A candidate is void once one of its two symbols has become part of another merge.
    if (left.id != best.left || left.next == kNone || symbols[left.next].id != best.right) continue;
    Scratch::Symbol& right = symbols[left.next];
    left.id = pair(best.left, best.right).merged;
    right.id = kGone;
    left.next = right.next;
    if (left.next != kNone) symbols[left.next].previous = best.at;
    if (consider(best.at)) std::push_heap(heap.begin(), heap.end(), later);
    if (consider(left.previous)) std::push_heap(heap.begin(), heap.end(), later);
  }
  for (const Scratch::Symbol& symbol : symbols) {
    if (symbol.id != kGone) ids.push_back(symbol.id);
  }
}

}  // namespace stoker::text

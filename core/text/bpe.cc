#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <string>

namespace stoker::text {
namespace {

constexpr unsigned kIdBits = 21;
constexpr std::uint64_t kFree = ~std::uint64_t{0};

std::uint64_t pair_of(std::int32_t left, std::int32_t right) {
  return (static_cast<std::uint64_t>(left) << kIdBits) | static_cast<std::uint64_t>(right);
}
std::uint64_t mixed(std::uint64_t pair) { return pair * 0x9E3779B97F4A7C15; }

}  // namespace

Result<Bpe> Bpe::make(WordIndex words, std::span<const Merge> merges) {
  if (words.end_id() >= kIdLimit || merges.size() >= kNoRank) {
    return Status(Reason::kTokenizer, "model.vocab: more than " + std::to_string(kIdLimit) + " entries");
  }
  Bpe bpe;
  bpe.words_ = std::move(words);
  for (unsigned b = 0; b < 256; ++b) {
    const auto byte = static_cast<char>(b);
    bpe.byte_ids_[b] = bpe.words_.find({&byte, 1});
    if (bpe.byte_ids_[b] < 0) {
      return Status(Reason::kTokenizer, "model.vocab: no entry for the single byte " + std::to_string(b));
    }
  }
  bpe.index_merges(merges);
  Scratch scratch;
  std::vector<std::int32_t> ids;
  bpe.is_reached_.resize(static_cast<std::size_t>(bpe.words_.end_id()));
  for (std::int32_t id = 0; id < bpe.words_.end_id(); ++id) {
    const std::string_view bytes = bpe.words_.bytes_of(id);
    if (bytes.empty()) continue;
    ids.clear();
    bpe.merge(bytes, ids, scratch);
    bpe.is_reached_[static_cast<std::size_t>(id)] = ids.size() == 1 && ids[0] == id;
  }
  return bpe;
}

void Bpe::index_merges(std::span<const Merge> merges) {
  const std::size_t n_slots = std::bit_ceil(merges.size() * 3 / 2 + 2);
  pairs_.assign(n_slots, kFree);
  pair_shift_ = 64 - static_cast<unsigned>(std::countr_zero(n_slots));
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const std::uint64_t pair = pair_of(merges[rank].left, merges[rank].right);
    std::size_t slot = mixed(pair) >> pair_shift_;
    while (pairs_[slot] != kFree && pairs_[slot] >> kIdBits != pair) slot = (slot + 1) & (n_slots - 1);
    pairs_[slot] = (pair << kIdBits) | rank;
    merged_.push_back(merges[rank].merged);
  }
  bool is_dense = !merged_.empty();
  for (std::size_t rank = 1; rank < merged_.size(); ++rank) is_dense &= merged_[rank] == merged_[rank - 1] + 1;
  if (is_dense) first_merged_ = merged_[0];
  byte_pair_ranks_.resize(256 * 256);
  for (unsigned a = 0; a < 256; ++a) {
    for (unsigned b = 0; b < 256; ++b) byte_pair_ranks_[a * 256 + b] = rank_of(byte_ids_[a], byte_ids_[b]);
  }
}

std::uint32_t Bpe::rank_of(std::int32_t left, std::int32_t right) const {
  const std::uint64_t pair = pair_of(left, right);
  for (std::size_t slot = mixed(pair) >> pair_shift_;; slot = (slot + 1) & (pairs_.size() - 1)) {
    if (pairs_[slot] >> kIdBits == pair) return static_cast<std::uint32_t>(pairs_[slot] & ((1U << kIdBits) - 1));
    if (pairs_[slot] == kFree) return kNoRank;
  }
}

void Bpe::prefetch(std::int32_t left, std::int32_t right) const {
  __builtin_prefetch(&pairs_[mixed(pair_of(left, right)) >> pair_shift_]);
}

void Bpe::encode(std::string_view word, std::vector<std::int32_t>& ids, Scratch& scratch) const {
  if (const std::int32_t id = whole(word); id >= 0) {
    ids.push_back(id);
    return;
  }
  merge(word, ids, scratch);
}

void Bpe::merge(std::string_view word, std::vector<std::int32_t>& ids, Scratch& scratch) const {
  if (word.size() > kShortBytes) return merge_long(word, ids, scratch);
  ShortWord state;
  begin(word, state);
  merge_together({&state, 1});
  state.append_to(ids);
}

namespace {

constexpr unsigned kPlaceBits = 6;
constexpr std::size_t kLanes = 8;
static_assert(Bpe::kShortBytes == 1 << kPlaceBits && kIdBits + kPlaceBits < 31);

constexpr std::int32_t key_of(std::uint32_t rank, std::size_t place) {
  return static_cast<std::int32_t>((rank << kPlaceBits) | static_cast<std::uint32_t>(place));
}
constexpr std::int32_t kNever = key_of((1U << kIdBits) - 1, 0);  // no rank, at the lowest place

}  // namespace

void Bpe::begin(std::string_view word, ShortWord& w) const {
  const std::size_t n = word.size();
  w.n_bytes = static_cast<std::uint8_t>(n);
  for (std::size_t i = 0; i < n; ++i) {
    w.symbols[i] = byte_ids_[static_cast<unsigned char>(word[i])];
    w.next[i] = static_cast<std::uint8_t>(i + 1);
    w.previous[i + 1] = static_cast<std::uint8_t>(i);
  }
  for (std::size_t i = 0; i + 1 < n; ++i) {
    const std::size_t pair = static_cast<unsigned char>(word[i]) * 256U + static_cast<unsigned char>(word[i + 1]);
    w.keys[i] = key_of(byte_pair_ranks_[pair], i);
  }
  for (std::size_t i = n - 1; i < (n + kLanes - 1) / kLanes * kLanes; ++i) w.keys[i] = kNever;
}

bool Bpe::step(ShortWord& w) const {
  std::array<std::int32_t, kLanes> lowest;
  std::copy_n(w.keys.begin(), kLanes, lowest.begin());
  for (std::size_t i = kLanes; i < w.n_bytes; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) lowest[lane] = std::min(lowest[lane], w.keys[i + lane]);
  }
  const std::int32_t best = *std::min_element(lowest.begin(), lowest.end());
  if (best >= kNever) return false;
  const auto at = static_cast<std::size_t>(best) & (kShortBytes - 1);
  const std::size_t gone = w.next[at];
  const std::size_t after = w.next[gone];
  w.symbols[at] = merged_by(static_cast<std::uint32_t>(best) >> kPlaceBits);
  w.next[at] = static_cast<std::uint8_t>(after);
  w.previous[after] = static_cast<std::uint8_t>(at);
  w.keys[gone] = kNever;
  w.changed = static_cast<std::uint8_t>(at);
  if (after != w.n_bytes) prefetch(w.symbols[at], w.symbols[after]);
  if (at > 0) prefetch(w.symbols[w.previous[at]], w.symbols[at]);
  return true;
}

void Bpe::renew(ShortWord& w) const {
  const std::size_t at = w.changed;
  const std::size_t after = w.next[at];
  w.keys[at] = after == w.n_bytes ? kNever : key_of(rank_of(w.symbols[at], w.symbols[after]), at);
  if (at == 0) return;
  const std::size_t before = w.previous[at];
  w.keys[before] = key_of(rank_of(w.symbols[before], w.symbols[at]), before);
}

void Bpe::merge_together(std::span<ShortWord> words) const {
  constexpr std::size_t kMost = 16;
  for (; words.size() > kMost; words = words.subspan(kMost)) merge_together(words.first(kMost));
  std::array<ShortWord*, kMost> active;
  std::size_t n_active = 0;
  for (ShortWord& word : words) {
    if (step(word)) active[n_active++] = &word;
  }
  while (n_active > 0) {
    for (std::size_t i = 0; i < n_active;) {
      renew(*active[i]);
      if (step(*active[i])) {
        ++i;
      } else {
        active[i] = active[--n_active];
      }
    }
  }
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
    left.id = merged_by(best.rank);
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

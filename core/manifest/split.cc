#include "manifest/split.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/hash.h"

namespace stoker {
namespace {

__extension__ using Wide = unsigned __int128;  // GCC and Clang have it on all 64-bit targets
constexpr std::uint64_t kWhole = 1'000'000;
constexpr std::uint64_t kRowsPerWord = 64;
constexpr std::uint64_t kWordsPerBlock = 8;
constexpr std::uint64_t kRowsPerBlock = kRowsPerWord * kWordsPerBlock;
constexpr std::array<char, 8> kMagic = {'S', 'T', 'K', 'S', 'I', 'D', 'E', '1'};
constexpr std::size_t kDigestChars = 32;

// The file: header, words, counts.
struct Header {
  std::array<char, 8> magic = kMagic;
  std::uint64_t n_rows = 0;
  std::uint64_t n_held_out = 0;
  std::array<char, kDigestChars> digest{};  // of what it belongs to, the numbers above, and all that follows
};

constexpr std::size_t n_words_of(std::uint64_t n_rows) { return (n_rows + kRowsPerWord - 1) / kRowsPerWord; }
constexpr std::size_t n_blocks_of(std::uint64_t n_rows) { return (n_rows + kRowsPerBlock - 1) / kRowsPerBlock; }

std::string digest_of(const Header& header, const std::string& content, const std::uint64_t* tables) {
  Digest digest;
  digest.add(content);
  digest.add_int(static_cast<std::int64_t>(header.n_rows));
  digest.add_int(static_cast<std::int64_t>(header.n_held_out));
  digest.add(tables, (n_words_of(header.n_rows) + n_blocks_of(header.n_rows)) * sizeof(std::uint64_t));
  return digest.hex();
}

// Where the k-th set bit of a word stands.
std::uint64_t nth_bit(std::uint64_t word, std::uint64_t k) {
  for (; k > 0; --k) word &= word - 1;
  return static_cast<std::uint64_t>(std::countr_zero(word));
}

}  // namespace

bool SplitRule::is_held_out(std::uint64_t hash) const {
  return static_cast<std::uint64_t>((Wide{hash} * kWhole) >> 64) < held_out_millionths;
}

std::string SplitRule::name() const {
  Digest digest;
  digest.add(key);
  digest.add_int(static_cast<std::int64_t>(held_out_millionths));
  return digest.hex();
}

void SplitHasher::bytes(std::string_view piece) {
  const bool is_last = piece.ends_with('\n');
  is_whole_ = is_last && !is_begun_;
  if (!is_whole_ && !is_begun_) {
    hash_.begin();
    is_begun_ = true;
  }
  if (has_kept_cr_ && piece != "\n") hash_.add("\r");
  if (is_last) piece.remove_suffix(1);
  has_kept_cr_ = piece.ends_with('\r');
  if (has_kept_cr_) piece.remove_suffix(1);
  if (is_whole_) {
    whole_ = hash_.of(piece);
  } else {
    hash_.add(piece);
  }
}

bool SplitHasher::end_line() {
  const std::uint64_t hash = is_whole_ ? whole_ : hash_.end();
  is_whole_ = is_begun_ = has_kept_cr_ = false;
  return rule_.is_held_out(hash);
}

void RowSides::add(bool is_held_out) {
  if (n_rows_ % kRowsPerWord == 0) made_.push_back(0);
  if (is_held_out) made_.back() |= std::uint64_t{1} << (n_rows_ % kRowsPerWord);
  ++n_rows_;
}

void RowSides::close() {
  const std::size_t n_words = n_words_of(n_rows_);
  for (std::size_t i = 0; i < n_words; i += kWordsPerBlock) {
    made_.push_back(n_held_out_);
    for (std::size_t k = i; k < std::min(i + kWordsPerBlock, n_words); ++k) {
      n_held_out_ += static_cast<std::uint64_t>(std::popcount(made_[k]));
    }
  }
  words_ = made_.data();
  counts_ = words_ + n_words;
}

Status RowSides::write(const std::string& path, const std::string& content) const {
  Header header{.n_rows = n_rows_, .n_held_out = n_held_out_};
  const std::string digest = digest_of(header, content, words_);
  std::copy_n(digest.begin(), kDigestChars, header.digest.begin());
  const std::size_t n_bytes = (n_words_of(n_rows_) + n_blocks_of(n_rows_)) * sizeof(std::uint64_t);
  const std::array<std::pair<const void*, std::size_t>, 2> pieces = {{{&header, sizeof header}, {words_, n_bytes}}};
  return write_atomically(path, pieces);
}

bool RowSides::read(const std::string& path, const std::string& content, std::uint64_t n_rows) {
  const FileHandle file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat st {};
  if (!file.is_open() || ::fstat(file.get(), &st) != 0) return false;
  const auto n_bytes = static_cast<std::size_t>(st.st_size);
  if (n_bytes != sizeof(Header) + (n_words_of(n_rows) + n_blocks_of(n_rows)) * sizeof(std::uint64_t)) return false;
  Mapping mapped(file, n_bytes);
  if (!mapped.is_mapped()) return false;
  Header header;
  std::memcpy(&header, mapped.data(), sizeof header);
  const auto* tables = reinterpret_cast<const std::uint64_t*>(mapped.data() + sizeof header);
  // What the counts say is trusted from here on, so all of it is held against the digest.
  if (header.magic != kMagic || header.n_rows != n_rows ||
      digest_of(header, content, tables) != std::string_view(header.digest.data(), kDigestChars)) {
    return false;
  }
  *this = {};
  n_rows_ = header.n_rows;
  n_held_out_ = header.n_held_out;
  words_ = tables;
  counts_ = tables + n_words_of(n_rows_);
  mapping_ = std::move(mapped);
  return true;
}

std::uint64_t RowSides::n_before(bool held_out, std::uint64_t block) const {
  return held_out ? counts_[block] : block * kRowsPerBlock - counts_[block];
}

std::uint64_t RowSides::nth(bool held_out, std::uint64_t k) const {
  // The last block with at most k of that side before it.
  std::uint64_t low = 0;
  std::uint64_t high = n_blocks_of(n_rows_);
  while (high - low > 1) {
    const std::uint64_t middle = low + (high - low) / 2;
    (n_before(held_out, middle) <= k ? low : high) = middle;
  }
  std::uint64_t left = k - n_before(held_out, low);
  std::uint64_t word = low * kWordsPerBlock;
  while (true) {
    const std::uint64_t bits = held_out ? words_[word] : ~words_[word];
    const auto n = static_cast<std::uint64_t>(std::popcount(bits));
    if (left < n) return word * kRowsPerWord + nth_bit(bits, left);
    left -= n;
    ++word;
  }
}

}  // namespace stoker

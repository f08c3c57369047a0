#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/keyed_hash.h"
#include "base/result.h"
#include "manifest/files.h"

namespace stoker {

/// Which rows are held out: those whose hash, under a key, is among the smallest. A row's hash is that of the bytes of
/// its line without LF or CRLF, so that it stays on its side wherever the line stands, and equal rows share one.
struct SplitRule {
  std::string key;
  std::uint64_t held_out_millionths = 0;  ///< the share of all rows, in (0, 1'000'000)

  bool is_held_out(std::uint64_t hash) const;
  /// Digits of a rule's own, for names of files.
  std::string name() const;

  bool operator==(const SplitRule&) const = default;
};

/// Finds the side of each line while it is scanned.
class SplitHasher {
 public:
  explicit SplitHasher(const SplitRule& rule) : rule_(rule), hash_(rule.key) {}

  /// A piece of the line, of any size; only the last one of a line may hold its LF.
  void bytes(std::string_view piece);
  /// The line is complete: whether it is held out. The next piece begins another one.
  bool end_line();

 private:
  const SplitRule rule_;
  KeyedHash hash_;
  std::uint64_t whole_ = 0;
  bool is_whole_ = false;     // the line came in one piece, and `whole_` is its hash
  bool is_begun_ = false;     // it comes in pieces
  bool has_kept_cr_ = false;  // which counts only if more follows than the LF
};

/// One bit for each row of a manifest, and the k-th row of either side: 1.125 bits per row, memory-mapped.
class RowSides {
 public:
  RowSides() = default;

  // Made in a scan: add() for each row in order, then close().
  void add(bool is_held_out);
  void close();

  /// @param content  The manifest's fingerprint and the rule's name: what it belongs to. @return INDEX_DIR.
  Status write(const std::string& path, const std::string& content) const;
  /// Maps what was written; false if it is not there, damaged, or belongs to another content.
  bool read(const std::string& path, const std::string& content, std::uint64_t n_rows);

  std::uint64_t n_rows() const { return n_rows_; }
  std::uint64_t n_held_out() const { return n_held_out_; }
  std::uint64_t n_on(bool held_out) const { return held_out ? n_held_out_ : n_rows_ - n_held_out_; }
  /// The k-th row, from 0, of a side; k < n_on(held_out). O(log n_rows).
  std::uint64_t nth(bool held_out, std::uint64_t k) const;

 private:
  std::uint64_t n_before(bool held_out, std::uint64_t block) const;

  std::uint64_t n_rows_ = 0;
  std::uint64_t n_held_out_ = 0;
  std::vector<std::uint64_t> made_;  // words, then counts
  Mapping mapping_;
  const std::uint64_t* words_ = nullptr;   // bit i % 64 of word i / 64: row i is held out
  const std::uint64_t* counts_ = nullptr;  // held-out rows before each block of 512
};

}  // namespace stoker

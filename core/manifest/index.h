#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "manifest/claim.h"
#include "manifest/open_files.h"
#include "manifest/split.h"

namespace stoker {

/// Where a row stands in the user's file: of a packed one, in what it unpacks to.
struct RowLocation {
  std::uint64_t offset = 0;   ///< of its first byte
  std::uint64_t n_bytes = 0;  ///< of a line: with its end, which the last row may lack; of a list's element: its own
  std::uint64_t line = 0;     ///< from 1, blank lines counted
};

/// What a row's number is.
enum class RowNumbers : std::uint8_t {
  kCounted,  ///< its place among the rows, which takes an index, made in one scan
  kOffsets,  ///< the offset of its first byte: nobody scans, nobody knows how many rows there are
};

/// How Manifest::open works; nothing here changes what comes out except max_row_bytes and row_numbers.
struct ManifestOptions {
  std::string index_dir;  ///< where indices are kept; made if missing; empty: in memory only, scanned at every open
  std::uint64_t max_row_bytes = std::uint64_t{256} << 20;  ///< longer rows are read as JSON_ROW_TOO_LONG
  /// Trust a remembered (path, size, modification time, inode) for finding the index without hashing the file again.
  /// What the index says about the content is keyed by size and hash alone.
  bool trust_stat = true;
  /// During a scan every 64 MiB; while another process scans, more often.
  std::function<void(std::uint64_t n_bytes_done, std::uint64_t n_bytes)> on_progress;
  RowNumbers row_numbers = RowNumbers::kCounted;
  std::optional<SplitRule> split = {};  ///< which rows are held out
  ClaimTimes claim = {};
  /// Shared by the manifests of a run; null: each keeps its file open.
  std::shared_ptr<OpenFiles> open_files = {};
};

/// A local file of rows with random access to them: JSONL, plain or packed by gzip or zstd, or one JSON list, plain or
/// packed. Which one is found out from its content, never from its name. What cannot be read at any place is once
/// written anew, as plain JSONL, into the index directory (a nameless file without one).
///
/// Rows end at LF only (U+2028 and the like are text); CRLF is taken; a UTF-8 byte-order mark is skipped at the start
/// of the file; lines of blanks, tabs and CR only are no rows, but count as lines; the last row needs no line end.
///
/// The index is one file in `index_dir`, made by one scan (rows, size, hash), renamed into place when complete, and
/// memory-mapped: 4 bytes per row. Its name is made of size and hash, so several processes, nodes or paths share it,
/// and a changed manifest gets another one. Of several that open the same path at once one scans or unpacks
/// (manifest/claim.h). A split's sides are found in the same scan, and kept in a file of their own.
///
/// With RowNumbers::kOffsets nothing is scanned: the fingerprint is that of samples of the content (at most a MiB) and
/// of the size, so that a row that changed elsewhere, without a change of size, is not noticed by it: what is
/// remembered of single rows needs another key. Threads: any, after open().
class Manifest {
 public:
  /// @return MANIFEST if the file cannot be read, changes during the scan, is no regular file, or is damaged;
  /// INDEX_DIR; STOPPED; SETTINGS for a JSON list whose rows are to be offsets.
  static Result<Manifest> open(const std::string& path, const ManifestOptions& options = {}, std::stop_token stop = {});

  Manifest(Manifest&&) noexcept;
  Manifest& operator=(Manifest&&) noexcept;
  ~Manifest();

  std::uint64_t n_rows() const;  ///< 0 where rows are offsets
  /// Of one side of the split. Without a split all rows are on the side that is not held out.
  std::uint64_t n_rows(bool held_out) const;
  /// The k-th row of a side, k < n_rows(held_out).
  std::uint64_t nth_row(bool held_out, std::uint64_t k) const;
  std::uint64_t size_bytes() const;  ///< of the rows, unpacked
  const std::string& path() const;
  /// Of the rows, unpacked: hash and size. Equal files at other paths have the same.
  const std::string& fingerprint() const;
  RowNumbers row_numbers() const;
  /// "JSONL", "JSONL in gzip", "a JSON list", ...
  const std::string& form() const;
  bool was_scanned() const;  ///< False if an index that was there already served.

  /// `row` must be below n_rows(), or an offset that find_rows() gave; of that n_bytes and line are not known (0).
  RowLocation row(std::uint64_t row) const;
  /// "train.jsonl:12 (byte 3456)", the line where it is known: what errors of a row start with.
  std::string describe(std::uint64_t row) const;

  /// Reads a row, without its line end, into `buffer`.
  /// @return JSON_ROW_TOO_LONG; MANIFEST if the file has become shorter; FETCH_IO.
  /// Threads: any, each with its own buffer. Blocks for the disk.
  Result<std::string_view> read(std::uint64_t row, std::string& buffer) const;

  // Where rows are offsets:
  /// How many rows there are, about: by what the samples hold, the same on every node.
  std::uint64_t about_n_rows() const;
  /// Appends the offsets of the rows that begin in [begin, end) and are on a side of the split.
  /// @return MANIFEST; STOPPED; SETTINGS for more than `most` rows in `rows`. Blocks for the disk: reads these bytes
  /// once.
  Status find_rows(std::uint64_t begin, std::uint64_t end, bool held_out, std::size_t most,
                   std::vector<std::uint64_t>& rows, const std::stop_token& stop) const;

  /// @return MANIFEST if the file is not what was indexed any more (by size, modification time and inode; cheap).
  Status check_unchanged() const;

 private:
  struct State;
  explicit Manifest(std::unique_ptr<State> state);
  static Status open_index(State& state, const ManifestOptions& options, const std::stop_token& stop);
  std::unique_ptr<State> state_;
};

}  // namespace stoker

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>

#include "base/result.h"

namespace stoker {

struct FileStamp;

/// Where a row stands in the user's file: of a packed one, in what it unpacks to.
struct RowLocation {
  std::uint64_t offset = 0;   ///< of its first byte
  std::uint64_t n_bytes = 0;  ///< of a line: with its end, which the last row may lack; of a list's element: its own
  std::uint64_t line = 0;     ///< from 1, blank lines counted
};

/// How Manifest::open works; nothing here changes what comes out except max_row_bytes.
struct ManifestOptions {
  std::string index_dir;  ///< where indices are kept; made if missing; empty: in memory only, scanned at every open
  std::uint64_t max_row_bytes = std::uint64_t{256} << 20;  ///< longer rows are read as JSON_ROW_TOO_LONG
  /// Trust a remembered (path, size, modification time, inode) for finding the index without hashing the file again.
  /// What the index says about the content is keyed by size and hash alone.
  bool trust_stat = true;
  std::function<void(std::uint64_t n_bytes_done, std::uint64_t n_bytes)> on_progress;  ///< during a scan, every 64 MiB
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
/// and a changed manifest gets another one. Threads: any, after open().
class Manifest {
 public:
  /// @return MANIFEST if the file cannot be read, changes during the scan, is no regular file, or is damaged;
  /// INDEX_DIR; STOPPED.
  static Result<Manifest> open(const std::string& path, const ManifestOptions& options = {}, std::stop_token stop = {});

  Manifest(Manifest&&) noexcept;
  Manifest& operator=(Manifest&&) noexcept;
  ~Manifest();

  std::uint64_t n_rows() const;
  std::uint64_t size_bytes() const;
  const std::string& path() const;
  /// Of the rows, unpacked: hash and size. Equal files at other paths have the same.
  const std::string& fingerprint() const;
  /// "JSONL", "JSONL in gzip", "a JSON list", ...
  const std::string& form() const;
  bool was_scanned() const;  ///< False if an index that was there already served.

  /// `row` must be below n_rows().
  RowLocation row(std::uint64_t row) const;
  /// "train.jsonl:12 (byte 3456)": what errors of a row start with.
  std::string describe(std::uint64_t row) const;

  /// Reads a row, without its line end, into `buffer`.
  /// @return JSON_ROW_TOO_LONG; MANIFEST if the file has become shorter; FETCH_IO.
  /// Threads: any, each with its own buffer. Blocks for the disk.
  Result<std::string_view> read(std::uint64_t row, std::string& buffer) const;

  /// @return MANIFEST if the file is not what was indexed any more (by size, modification time and inode; cheap).
  Status check_unchanged() const;

 private:
  struct State;
  explicit Manifest(std::unique_ptr<State> state);
  static Status open_index(State& state, const std::string& rows_path, const FileStamp& stamp,
                           const ManifestOptions& options, const std::stop_token& stop);
  std::unique_ptr<State> state_;
};

}  // namespace stoker

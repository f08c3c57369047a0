#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "base/result.h"
#include "exec/owned_fd.h"

namespace stoker {

/// Where a block of a table begins, and its first key.
struct TableBlock {
  Hash128 first_key;
  std::uint64_t begin = 0;
};

/// A file of records sorted by key, never changed once it has its name:
///   magic (8); blocks: records, checksum (8); the blocks' first keys and places (24 each); foot (64).
/// A record is the difference to the key before, length of the value, value.
///
/// Blocks are read as they are wanted and held against their checksum each time. Read, not mapped: another node may
/// remove the file, and on NFS a mapped page that is gone is a SIGBUS where a read is an error.
class Table {
 public:
  /// @return INDEX_DIR with what is wrong: no such file, damaged, another version's, or of other rules.
  static Result<std::shared_ptr<const Table>> open(const std::string& path, const Hash128& rules);

  /// The value of a key; empty if the table says that nothing is known any more. Absent too where the block is damaged,
  /// which one log line tells. Threads: any. Blocks for the disk.
  std::optional<std::string> find(const Hash128& key) const;

  std::uint64_t n_records() const { return n_records_; }
  std::uint64_t n_bytes() const { return n_bytes_; }

 private:
  friend class TableCursor;
  Table(OwnedFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}
  Status read_foot(const Hash128& rules);
  /// The records of a block. @return false if it cannot be had or is damaged.
  bool read_block(std::size_t block, std::string& records) const;

  const OwnedFd fd_;
  const std::string path_;
  std::uint64_t n_records_ = 0, n_bytes_ = 0, blocks_end_ = 0;
  std::vector<TableBlock> blocks_;
  mutable std::atomic<bool> is_damage_told_{false};
};

/// Walks a table's records in order. Damaged blocks are passed over. Threads: one.
class TableCursor {
 public:
  explicit TableCursor(std::shared_ptr<const Table> table) : table_(std::move(table)) { next(); }

  bool is_at_end() const { return is_at_end_; }
  const Hash128& key() const { return key_; }
  std::string_view value() const { return value_; }
  void next();

 private:
  const std::shared_ptr<const Table> table_;
  std::size_t next_block_ = 0;
  std::string records_;
  std::string_view rest_;
  Hash128 key_;
  std::string_view value_;
  bool is_at_end_ = false;
};

/// Writes a table to a new file. Nobody sees it before finish() has given it its name.
class TableWriter {
 public:
  /// @param unfinished  Its path until then; removed by the destructor where it was not finished.
  TableWriter(std::string unfinished, const Hash128& rules);
  ~TableWriter();
  TableWriter(const TableWriter&) = delete;
  TableWriter& operator=(const TableWriter&) = delete;

  /// Keys ascend. `value` has at most RecordLog::kMostValueBytes.
  void add(const Hash128& key, std::string_view value);
  /// Writes the rest and renames. @return INDEX_DIR for anything that failed since the beginning.
  Status finish(const std::string& path);
  /// Whether anything failed: what is added now is lost.
  bool has_failed() const { return !status_.ok(); }

 private:
  void end_block();
  void write(std::string_view bytes);

  const std::string unfinished_;
  const Hash128 rules_;
  OwnedFd fd_;
  Status status_;
  std::uint64_t n_written_ = 0, n_records_ = 0;
  std::string pending_;  // bytes of ended blocks
  std::string block_;
  Hash128 last_key_;
  std::vector<TableBlock> blocks_;
};

}  // namespace stoker

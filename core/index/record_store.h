#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/hash.h"
#include "base/mutex.h"
#include "base/result.h"
#include "exec/owned_fd.h"
#include "index/table.h"

namespace stoker {

/// Records by key in a folder that any number of processes and nodes share, also on NFS. Each appends to a log of its
/// own; whoever opens the folder merges what others left into one table, if nobody else is doing so.
///
/// What is kept can be lost (a killed writer's last block, a full disk) and never be wrong: files are held against
/// checksums, and damaged ones are told and not used. No trouble with the folder is an error: a store that cannot
/// read or write remembers for its own process, and says so once.
class RecordStore {
 public:
  /// Beyond this the records of this process go into a table of their own, so that memory is bounded.
  static constexpr std::size_t kMostInMemory = std::size_t{32} << 20;

  /// @param folder  Made if missing; empty: nothing is kept, only remembered.
  /// @param rules   What the records follow from beside their keys. Files of other rules are not read.
  /// Blocks for the disk; a merge that `stop` interrupts is left to the next one.
  RecordStore(std::string folder, const Hash128& rules, std::stop_token stop = {});
  /// Writes what is not written, and leaves the log to be merged.
  ~RecordStore();
  RecordStore(const RecordStore&) = delete;
  RecordStore& operator=(const RecordStore&) = delete;

  /// The value last put under a key, here or, before this store was opened, by anybody. Threads: any.
  std::optional<std::string> find(const Hash128& key) const STOKER_EXCLUDES(mu_);
  /// Remembers a value of 1 to RecordLog::kMostValueBytes bytes. Threads: any. Does not block for the disk.
  void put(const Hash128& key, std::string value) STOKER_EXCLUDES(mu_);
  /// Who opens the folder later finds nothing under a key. What this store says of it stays, so that one run does not
  /// change its mind. Threads: as put().
  void forget(const Hash128& key) STOKER_EXCLUDES(mu_);
  /// Writes what was put since the last call. Threads: any. Blocks for the disk.
  void flush() STOKER_EXCLUDES(mu_, write_mu_);

  /// Records and bytes of the tables.
  std::uint64_t n_records() const STOKER_EXCLUDES(mu_);
  std::uint64_t n_bytes() const STOKER_EXCLUDES(mu_);

 private:
  using Tables = std::vector<std::shared_ptr<const Table>>;  // oldest first
  using Records = std::unordered_map<Hash128, std::string>;
  struct File;

  std::vector<File> files() const;
  void merge(std::stop_token stop);
  bool merge_once(const std::stop_token& stop, std::int64_t now_ns);
  void add_table(const File& file, Tables& to) const;
  void load() STOKER_EXCLUDES(mu_);
  Status append() STOKER_REQUIRES(write_mu_) STOKER_EXCLUDES(mu_);
  Status open_log() STOKER_REQUIRES(write_mu_);
  Status spill() STOKER_REQUIRES(write_mu_) STOKER_EXCLUDES(mu_);
  void give_up(std::string_view why);
  void write_later(const Hash128& key, std::string_view value) STOKER_REQUIRES(mu_);
  void remember(const Hash128& key, std::string value) STOKER_REQUIRES(mu_);
  std::string path_of(std::string_view name) const;

  const std::string folder_;
  const Hash128 rules_;
  std::atomic<bool> is_kept_{true};  // false once writing failed

  mutable Mutex mu_;
  std::shared_ptr<const Tables> tables_ STOKER_GUARDED_BY(mu_);
  Records recent_ STOKER_GUARDED_BY(mu_);
  std::size_t recent_bytes_ STOKER_GUARDED_BY(mu_) = 0;
  std::shared_ptr<const Records> spilling_ STOKER_GUARDED_BY(mu_);  // while they go into a table
  std::vector<std::string> pending_ STOKER_GUARDED_BY(mu_);         // payloads of blocks to be written
  std::unordered_set<Hash128> forgotten_ STOKER_GUARDED_BY(mu_);

  Mutex write_mu_;  // taken before mu_
  OwnedFd log_ STOKER_GUARDED_BY(write_mu_);
  std::string log_name_ STOKER_GUARDED_BY(write_mu_);
};

}  // namespace stoker

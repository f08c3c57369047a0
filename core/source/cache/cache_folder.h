#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>

#include "base/result.h"
#include "exec/owned_fd.h"
#include "source/cache/entry.h"

namespace stoker {

/// What the processes that share a folder agree on.
struct CacheTotals {
  std::uint64_t used_bytes = 0;          ///< of disk: what is kept or being written, in whole blocks of 4 KiB
  std::uint64_t end_place = UINT64_MAX;  ///< objects with a place below this are kept
  std::uint64_t n_evicted = 0;           ///< by the call that returned this
};

/// The files of a cache, in a folder that several processes may share. An entry's name is its key, so that going
/// through the names is going through the places; what must go, goes from the highest place down.
///
/// Reading takes no lock. Totals change under a file lock that is held for moments; what a killed process leaves
/// (temporary files, bytes that it had counted) is found and put right by the next one that opens the folder alone.
/// Every count errs to the side of too much, so that the limit holds at all times.
class CacheFolder {
 public:
  /// Makes the folder, readable for its owner only. @return SETTINGS if it cannot be made or is another user's;
  /// FETCH_IO if the disk is full or fails.
  static Result<std::unique_ptr<CacheFolder>> open(const std::string& dir);

  /// Joins those who use the folder; whoever is alone counts what is there, clears up, and gives more places room if
  /// there is some. Must come before the first `reserve`. Blocks: for a folder with a million entries some ten seconds.
  /// @return STOPPED; FETCH_IO.
  Result<CacheTotals> join(std::uint64_t limit_bytes, std::stop_token stop);

  /// The entry's file; not open if there is none. Threads: any.
  OwnedFd find(const CacheKey& key) const;
  /// Deletes an entry. Its bytes are given back with the next call of `reserve` or `publish`. Threads: any.
  void remove(const CacheKey& key);

  /// Disk that a file of so many bytes takes.
  static std::uint64_t footprint(std::uint64_t file_bytes) { return (file_bytes + 4095) / 4096 * 4096; }
  /// Takes room for an object at `place`, if there is any: what has a higher place makes room for it.
  /// @return false: it is not kept. FETCH_IO.
  Result<bool> reserve(std::uint64_t place, std::uint64_t n_bytes, std::uint64_t limit_bytes, CacheTotals& totals);
  /// Writes an entry under a temporary name. @return its name; FETCH_IO.
  Result<std::string> write(std::string_view head, std::span<const std::byte> object);
  /// Ends what `reserve` began: the temporary file gets the entry's name, unless the entry came to be meanwhile or is
  /// no longer to be kept; then it is deleted and its room given back. An empty name: nothing was written.
  /// @return whether it is there now. FETCH_IO.
  Result<bool> publish(const std::string& temporary, const CacheKey& key, std::uint64_t n_bytes, CacheTotals& totals);

 private:
  class TotalsLock;
  CacheFolder() = default;
  Result<CacheTotals> count_alone(std::uint64_t limit_bytes, std::stop_token stop);
  void clear_temporary(bool is_alone) const;
  void evict(std::uint64_t to_bytes, CacheTotals& totals) const;

  OwnedFd root_, temporary_, users_, totals_;
  std::atomic<std::uint64_t> removed_bytes_{0};  // not yet taken off the totals
  std::atomic<std::uint64_t> n_written_{0};
  std::string name_start_;  // of temporary files, this process's own
};

}  // namespace stoker

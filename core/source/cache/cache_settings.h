#pragma once

#include <cstdint>
#include <string>

namespace stoker {

/// A local folder that keeps encoded objects from the network. Never changes a batch.
struct CacheSettings {
  std::string dir;                ///< absolute; empty: no cache. Processes on a node share it and its limit
  std::uint64_t limit_bytes = 0;  ///< of disk, for all that share the folder
  /// Every use of a kept object is confirmed by the store, which is asked for it only if it is another one by now (one
  /// request, no body). False: what is kept is taken for what the store has, and the store is not asked.
  bool is_validated = true;
};

/// Counts since creation, and what the folder looks like (as far as this process knows).
struct CacheStats {
  std::int64_t n_hits = 0;     ///< requests answered with kept bytes
  std::int64_t n_misses = 0;   ///< requests to the network that could have been
  std::int64_t n_changed = 0;  ///< of these, the ones for which an older version was there
  std::int64_t n_hit_bytes = 0;
  std::int64_t n_written = 0;
  std::int64_t n_written_bytes = 0;
  std::int64_t n_lagging = 0;  ///< not kept because writing was behind
  std::int64_t n_evicted = 0;
  std::int64_t n_damaged = 0;  ///< entries that were not what had been written, and went

  std::uint64_t used_bytes = 0;
  std::uint64_t limit_bytes = 0;
  double share = 0;  ///< of all objects, the ones that are kept
};

}  // namespace stoker

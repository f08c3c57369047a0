#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace stoker {

enum class Shuffle : std::uint8_t {
  kNone,     ///< rows in file order, pass after pass
  kRows,     ///< every pass is another permutation of all rows
  kChunked,  ///< rows that nobody counted, by plan/chunk_order.h; not an Order's
};

/// One manifest as the order sees it.
struct SourceRows {
  std::string fingerprint;  ///< of the content, never of the path
  std::uint64_t n_rows = 0;
};

/// What stands at one position of the order.
struct OrderEntry {
  std::uint64_t pass = 0;    ///< which visit of the data, from 0
  std::uint32_t source = 0;  ///< index into the sources
  std::uint64_t row = 0;     ///< row of that source
};

/// A window of the order: the unit of planning.
struct OrderWindow {
  struct Place {
    std::uint64_t order_index = 0;
    OrderEntry entry;
  };
  std::uint64_t window = 0;
  std::vector<Place> places;
  std::uint64_t n_until_end = 0;  ///< samples of the run until its end; of about, where nobody counted the rows
};

/// Sources that belong together in a mixture: the files of one data entry.
struct MixtureEntry {
  std::size_t n_sources = 1;            ///< the next so many
  std::uint64_t samples_per_epoch = 0;  ///< see plan/mixture.h
};

/// The sequence in which rows are visited: a pure function of (fingerprints, seed, shuffle, mixture), O(1) in time and
/// memory at any position. Several sources are one row space, concatenated. A pass visits every row exactly once, and
/// the next pass follows without a wall.
///
/// In a mixture whose entries do not all give each row once, an epoch has `samples_per_epoch` of each entry, in
/// shuffled order (without shuffling: entry after entry). An entry goes through its rows pass after pass, each pass
/// another permutation, from where the epoch before left it: at the end of any epoch its rows' visits differ by at most
/// one.
///
/// The permutation is a Feistel network over the smallest power of two that holds the rows, walked until it lands on a
/// row (Black and Rogaway 2002, "Ciphers with Arbitrary Finite Domains"); its key comes from seed, pass and
/// fingerprints. Threads: any, const.
class Order {
 public:
  /// @param epochs  Passes in a finite order; nullopt for an endless one.
  /// @return kNoData without a row; kSettings for epochs = 0, or if positions would pass 2^63.
  /// @param mixture  Covers all sources; empty: each row once an epoch.
  static Result<Order> make(std::vector<SourceRows> sources, std::uint64_t seed, Shuffle shuffle,
                            std::optional<std::uint64_t> epochs, std::span<const MixtureEntry> mixture = {});

  /// `position` must be below size() where there is one.
  OrderEntry at(std::uint64_t position) const;

  /// Positions in a finite order.
  std::optional<std::uint64_t> size() const { return size_; }
  /// Positions of an epoch: every row once, unless there is a mixture.
  std::uint64_t rows_per_pass() const { return entries_.empty() ? first_row_.back() : first_slot_.back(); }

 private:
  // Of a mixture.
  struct Entry {
    std::uint64_t first_row = 0;  // in the row space
    std::uint64_t n_rows = 0;
    std::uint64_t key = 0;
  };
  Order() = default;
  Status mix(std::span<const MixtureEntry> mixture);
  OrderEntry mixed_at(std::uint64_t position) const;
  void place(std::uint64_t row, OrderEntry& entry) const;

  std::vector<std::uint64_t> first_row_;  // (n_sources + 1): where each source starts in the row space, then the total
  std::uint64_t key_ = 0;
  Shuffle shuffle_ = Shuffle::kRows;
  std::optional<std::uint64_t> size_;
  std::vector<Entry> entries_;             // empty: no mixture
  std::vector<std::uint64_t> first_slot_;  // (n_entries + 1): where each entry starts among an epoch's samples
};

/// Where `index` < n goes under the keyed permutation of [0, n). n in [1, 2^63]. Exposed for tests.
std::uint64_t permute_index(std::uint64_t index, std::uint64_t n, std::uint64_t key);

}  // namespace stoker

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"

namespace stoker {

/// One manifest as an order without an index sees it.
struct SourceBytes {
  std::string fingerprint;  ///< of the content, never of the path
  std::uint64_t n_bytes = 0;
  std::uint64_t n_rows = 0;  ///< about; decides how a group is cut into windows, and must be the same on every node
};

/// Part of the fingerprint: these decide the order.
struct ChunkSettings {
  std::uint64_t chunk_bytes = std::uint64_t{64} << 20;
  std::uint64_t chunks_per_group = 4;
};

/// Rows that begin in these bytes of a source.
struct Chunk {
  std::uint32_t source = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;

  bool operator==(const Chunk&) const = default;
};

/// The sequence in which rows are visited when nobody has counted them: a pure function of (fingerprints, sizes, seed,
/// settings). Every pass permutes the chunks of all manifests and deals them into groups; the rows of a group are
/// permuted, once somebody has found them, and cut into a fixed number of windows of nearly equal size. So a window is
/// found by reading its group alone, a pass visits every row exactly once, and the next pass follows without a wall.
///
/// Rows come within a group's distance of one another's chunks: more order than Order leaves, less than a shuffle
/// buffer of a group's size would. Threads: any, const.
class ChunkOrder {
 public:
  /// Where a window stands.
  struct Place {
    std::uint64_t pass = 0;
    std::uint64_t group = 0;
    std::uint64_t part = 0;

    bool operator==(const Place&) const = default;
  };
  /// A window has at most so many rows, so that (window, row of it) is one number of 63 bits.
  static constexpr std::uint64_t kMostRows = std::uint64_t{1} << 20;

  /// @param window_samples  How many rows a window is to have, about.
  /// @param epochs  Passes in a finite order; nullopt for an endless one.
  /// @return NO_DATA without a byte; SETTINGS for numbers out of range.
  static Result<ChunkOrder> make(const std::vector<SourceBytes>& sources, std::uint64_t seed,
                                 const ChunkSettings& settings, std::uint64_t window_samples,
                                 std::optional<std::uint64_t> epochs);

  /// UINT64_MAX for an endless order.
  std::uint64_t n_windows() const;
  std::uint64_t windows_per_pass() const { return n_groups_ * parts_; }
  /// Samples of the run before a window, about.
  std::uint64_t n_before(std::uint64_t window) const;

  /// `window` must be below n_windows().
  Place place_of(std::uint64_t window) const;
  /// The chunks of a group, in the order in which their rows are counted.
  std::vector<Chunk> chunks_of(std::uint64_t pass, std::uint64_t group) const;
  /// Which of a group's `n_rows` rows a window has, in the order in which they come.
  std::vector<std::uint64_t> rows_of(const Place& place, std::uint64_t n_rows) const;

 private:
  ChunkOrder() = default;

  ChunkSettings settings_;
  std::vector<std::uint64_t> n_bytes_;      // (n_sources)
  std::vector<std::uint64_t> first_chunk_;  // (n_sources + 1): where each source's chunks start, then the total
  std::uint64_t key_ = 0;
  std::uint64_t n_rows_ = 0;  // of a pass, about
  std::uint64_t n_groups_ = 0;
  std::uint64_t parts_ = 1;  // windows of a group
  std::optional<std::uint64_t> epochs_;
};

}  // namespace stoker

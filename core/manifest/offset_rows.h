#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "base/result.h"
#include "manifest/files.h"
#include "manifest/split.h"

namespace stoker {

/// What is known of a file of rows without reading all of it: the same for equal contents, wherever they lie.
struct ContentSamples {
  std::string fingerprint;      ///< hash of the samples, and the size
  std::uint64_t n_rows = 0;     ///< about, by the line ends in the samples
  std::uint64_t row_bytes = 0;  ///< of a row, about
};

/// Reads at most a MiB, in blocks spread evenly over the file. @return MANIFEST; `path` is for the message.
Result<ContentSamples> sample_content(const FileHandle& file, const std::string& path, std::uint64_t n_bytes);

struct ByteRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};
/// Which rows are looked for; without a rule all rows are on the side that is not held out.
struct SplitSide {
  const std::optional<SplitRule>& rule;
  bool held_out = false;
};

/// Appends the offsets of the rows that begin in `range` and are on `side`, ascending.
/// @return SETTINGS for more than `most` in `rows`; FETCH_IO; STOPPED.
Status find_row_offsets(const FileHandle& file, ByteRange range, const SplitSide& side, std::size_t most,
                        std::vector<std::uint64_t>& rows, const std::stop_token& stop);

/// Reads the line that begins at `offset`, its end included, into `buffer`; nothing at the end of the file.
/// @param guess  Bytes that most lines do not pass. @return false if it has more than `most` bytes; FETCH_IO.
Result<bool> read_line_at(const FileHandle& file, std::uint64_t offset, std::uint64_t guess, std::uint64_t most,
                          std::string& buffer);

}  // namespace stoker

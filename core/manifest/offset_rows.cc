#include "manifest/offset_rows.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include <fmt/format.h>

#include "base/hash.h"
#include "manifest/line_scanner.h"

namespace stoker {
namespace {

__extension__ using Wide = unsigned __int128;  // GCC and Clang have it on all 64-bit targets
constexpr std::uint64_t kSamples = 64;
constexpr std::uint64_t kSampleBytes = 16384;
constexpr std::size_t kPieceBytes = std::size_t{1} << 20;

struct Finder {
  ByteRange range;
  bool wants_held_out;
  std::size_t most;
  std::vector<std::uint64_t>& rows;
  std::optional<SplitHasher> hasher;
  bool is_past = false;  // a line began behind the range
  bool is_full = false;

  void bytes(std::string_view piece) {
    if (hasher) hasher->bytes(piece);
  }
  void line(const FoundLine& found) {
    const bool is_held_out = hasher ? hasher->end_line() : false;
    // The line that reaches into the range from before it is the range before's.
    if (found.is_row && found.begin >= range.begin && found.begin < range.end && is_held_out == wants_held_out) {
      is_full = rows.size() >= most;
      if (!is_full) rows.push_back(found.begin);
    }
    is_past = found.end >= range.end;
  }
};

}  // namespace

Result<ContentSamples> sample_content(const FileHandle& file, const std::string& path, std::uint64_t n_bytes) {
  Digest digest;
  std::string block(kSampleBytes, '\0');
  std::uint64_t n_seen = 0;
  std::uint64_t n_ends = 0;
  const bool is_whole = n_bytes <= kSamples * kSampleBytes;
  const std::uint64_t n_blocks = is_whole ? (n_bytes + kSampleBytes - 1) / kSampleBytes : kSamples;
  for (std::uint64_t i = 0; i < n_blocks; ++i) {
    // The first and the last bytes are among them.
    const std::uint64_t at =
        is_whole ? i * kSampleBytes : static_cast<std::uint64_t>(Wide{n_bytes - kSampleBytes} * i / (kSamples - 1));
    const std::size_t wanted = std::min<std::uint64_t>(kSampleBytes, n_bytes - at);
    auto n_read = read_at(file, block.data(), wanted, at);
    if (!n_read.ok()) return Status(Reason::kManifest, fmt::format("{}: {}", path, n_read.status().message()));
    if (*n_read != wanted) return Status(Reason::kManifest, path + ": the file became shorter while it was opened");
    digest.add(block.data(), wanted);
    n_seen += wanted;
    n_ends += static_cast<std::uint64_t>(std::count(block.begin(), block.begin() + static_cast<long>(wanted), '\n'));
  }
  const std::uint64_t row_bytes = n_seen / std::max<std::uint64_t>(n_ends, 1);
  return ContentSamples{
      .fingerprint = fmt::format("samples-{}-{}", digest.hex(), n_bytes),
      .n_rows = n_bytes == 0 ? 0 : std::max<std::uint64_t>(n_bytes / std::max<std::uint64_t>(row_bytes, 1), 1),
      .row_bytes = row_bytes};
}

Status find_row_offsets(const FileHandle& file, ByteRange range, const SplitSide& side, std::size_t most,
                        std::vector<std::uint64_t>& rows, const std::stop_token& stop) {
  // The byte before the range tells whether a line begins with it; at the start of the file, a byte-order mark may.
  constexpr std::uint64_t kMarkBytes = 3;
  const std::uint64_t from = range.begin <= kMarkBytes ? 0 : range.begin - 1;
  Finder finder{.range = range, .wants_held_out = side.held_out, .most = most, .rows = rows, .hasher = {}};
  if (side.rule) finder.hasher.emplace(*side.rule);
  LineScanner scanner(finder, from);
  std::string piece(kPieceBytes, '\0');
  std::uint64_t at = from;
  while (!finder.is_past && !finder.is_full) {
    if (stop.stop_requested()) return {Reason::kStopped, "stopped while rows were looked for"};
    // Behind the range only the end of its last row is of interest: little by little.
    const std::uint64_t wanted =
        std::min<std::uint64_t>(kPieceBytes, at < range.end ? std::max<std::uint64_t>(range.end - at, 4096) : 65536);
    STOKER_TRY(const std::size_t n_read, read_at(file, piece.data(), wanted, at));
    if (n_read == 0) {
      scanner.finish();
      break;
    }
    scanner.feed(piece.data(), n_read);
    at += n_read;
  }
  if (!finder.is_full) return {};
  return {Reason::kSettings, fmt::format("more than {} rows in one group of chunks: make chunks.size smaller", most)};
}

Result<bool> read_line_at(const FileHandle& file, std::uint64_t offset, std::uint64_t guess, std::uint64_t most,
                          std::string& buffer) {
  constexpr std::uint64_t kLeast = 4096;
  std::uint64_t wanted = std::clamp<std::uint64_t>(2 * guess, kLeast, std::max(most, kLeast));
  std::size_t n_have = 0;
  while (true) {
    buffer.resize(n_have + wanted);
    STOKER_TRY(const std::size_t n_read, read_at(file, buffer.data() + n_have, wanted, offset + n_have));
    const void* end = std::memchr(buffer.data() + n_have, '\n', n_read);
    const std::size_t n_line =
        end != nullptr ? static_cast<std::size_t>(static_cast<const char*>(end) - buffer.data()) + 1 : n_have + n_read;
    if (n_line > most) return false;
    if (end != nullptr || n_read < wanted) {
      buffer.resize(n_line);
      return true;
    }
    n_have += n_read;
    wanted = n_have;  // twice as much in all
  }
}

}  // namespace stoker

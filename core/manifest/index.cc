#include "manifest/index.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <limits>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/hash.h"
#include "manifest/files.h"
#include "manifest/line_scanner.h"
#include "manifest/offset_rows.h"
#include "manifest/unpack.h"

namespace stoker {
namespace {

constexpr std::uint64_t kRowsPerBlock = 256;
constexpr std::uint32_t kSlotIsLong = std::numeric_limits<std::uint32_t>::max();
constexpr std::size_t kChunkBytes = std::size_t{4} << 20;
constexpr std::uint64_t kProgressBytes = std::uint64_t{64} << 20;
constexpr std::array<char, 8> kMagic = {'S', 'T', 'K', 'R', 'O', 'W', 'S', '1'};
constexpr std::size_t kHashChars = 32;

// The index file: header, blocks, exceptions, slots; in the byte order of the machine (x86-64 and ARM64 are both
// little-endian).
struct Header {
  std::array<char, 8> magic = kMagic;
  std::uint64_t n_bytes = 0;
  std::uint64_t n_rows = 0;
  std::uint64_t n_exceptions = 0;
  std::array<char, kHashChars> hash{};    // of the manifest
  std::array<char, kHashChars> digest{};  // of this header, with zeros here
};

// Where every 256th row starts.
struct Block {
  std::uint64_t offset = 0;
  std::uint64_t line = 0;
};

// A row that blank lines follow, or whose slot is beyond 32 bits.
struct Exception {
  std::uint64_t row = 0;
  std::uint64_t n_slot_bytes = 0;  // to the start of the next row
  std::uint64_t n_row_bytes = 0;
  std::uint64_t n_blank_lines = 0;  // after it
};

struct RowTable {
  Header header;
  std::vector<Block> blocks;
  std::vector<Exception> exceptions;
  std::vector<std::uint32_t> slots;
};

// Collects lines, in file order, into a table.
class TableBuilder {
 public:
  void add_line(std::uint64_t begin, std::uint64_t end, bool is_row) {
    ++line_;
    if (!is_row) {
      ++n_blank_lines_;
      return;
    }
    close_row(begin);
    if (table_.header.n_rows % kRowsPerBlock == 0) table_.blocks.push_back({begin, line_});
    ++table_.header.n_rows;
    row_begin_ = begin;
    row_end_ = end;
  }

  RowTable finish(std::uint64_t n_bytes, const std::string& hash) {
    close_row(n_bytes);
    table_.header.n_bytes = n_bytes;
    table_.header.n_exceptions = table_.exceptions.size();
    std::copy_n(hash.begin(), kHashChars, table_.header.hash.begin());
    return std::move(table_);
  }

 private:
  // The row before, if any, reaches up to `next_begin`.
  void close_row(std::uint64_t next_begin) {
    const std::uint64_t n_blank_lines = std::exchange(n_blank_lines_, 0);
    if (table_.header.n_rows == 0) return;
    const std::uint64_t n_slot_bytes = next_begin - row_begin_;
    if (n_blank_lines > 0 || n_slot_bytes >= kSlotIsLong) {
      table_.exceptions.push_back({table_.header.n_rows - 1, n_slot_bytes, row_end_ - row_begin_, n_blank_lines});
    }
    table_.slots.push_back(static_cast<std::uint32_t>(std::min<std::uint64_t>(n_slot_bytes, kSlotIsLong)));
  }

  RowTable table_;
  std::uint64_t line_ = 0;
  std::uint64_t n_blank_lines_ = 0;
  std::uint64_t row_begin_ = 0;
  std::uint64_t row_end_ = 0;
};

// What becomes of the lines of a scan.
struct ScanSink {
  TableBuilder builder;
  std::optional<SplitHasher> hasher;
  RowSides sides;

  void bytes(std::string_view piece) {
    if (hasher) hasher->bytes(piece);
  }
  void line(const FoundLine& found) {
    builder.add_line(found.begin, found.end, found.is_row);
    if (!hasher) return;
    const bool is_held_out = hasher->end_line();
    if (found.is_row) sides.add(is_held_out);
  }
};

struct Scanned {
  RowTable table;
  RowSides sides;
};

Result<Scanned> scan(const FileHandle& file, const std::string& path, const FileStamp& stamp,
                     const ManifestOptions& options, Claim* claim, const std::stop_token& stop) {
  ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
  ScanSink sink;
  if (options.split) sink.hasher.emplace(*options.split);
  LineScanner scanner(sink, 0);
  Digest digest;
  std::vector<char> chunk(kChunkBytes);
  std::uint64_t done = 0;
  std::uint64_t next_progress = kProgressBytes;
  while (true) {
    if (stop.stop_requested()) return Status(Reason::kStopped, path + ": the scan was stopped");
    auto read = read_at(file, chunk.data(), chunk.size(), done);
    if (!read.ok()) return Status(Reason::kManifest, fmt::format("{}: {}", path, read.status().message()));
    if (*read == 0) break;
    digest.add(chunk.data(), *read);
    scanner.feed(chunk.data(), *read);
    done += *read;
    if (claim != nullptr) claim->tell(done, stamp.n_bytes);
    if (options.on_progress && done >= next_progress) {
      options.on_progress(done, std::max(done, stamp.n_bytes));
      next_progress = done + kProgressBytes;
    }
  }
  scanner.finish();
  if (options.on_progress) options.on_progress(done, done);
  STOKER_TRY(const FileStamp after, stamp_of(file, path));
  if (after != stamp || done != stamp.n_bytes) {
    return Status(Reason::kManifest, path + ": the file changed while it was scanned");
  }
  sink.sides.close();
  return Scanned{sink.builder.finish(done, digest.hex()), std::move(sink.sides)};
}

std::string header_digest(Header header) {
  header.digest.fill('\0');
  Digest digest;
  digest.add(&header, sizeof header);
  return digest.hex();
}

std::string fingerprint_of(const Header& header) {
  return fmt::format("{}-{}", std::string_view(header.hash.data(), kHashChars), header.n_bytes);
}

template <typename T>
std::pair<const void*, std::size_t> bytes_of(const std::vector<T>& v) {
  return {v.data(), v.size() * sizeof(T)};
}

Status write_table(const std::string& path, RowTable& table) {
  const std::string digest = header_digest(table.header);
  std::copy_n(digest.begin(), kHashChars, table.header.digest.begin());
  const std::array<std::pair<const void*, std::size_t>, 4> pieces = {{{&table.header, sizeof table.header},
                                                                      bytes_of(table.blocks),
                                                                      bytes_of(table.exceptions),
                                                                      bytes_of(table.slots)}};
  return write_atomically(path, pieces);
}

}  // namespace

struct Manifest::State {
  std::string path;
  std::string fingerprint;
  std::uint64_t max_row_bytes = 0;
  std::shared_ptr<const FileHandle>
      file;  // of the rows: at `path`, or what was unpacked from it; null: among open_files
  std::shared_ptr<OpenFiles> open_files;
  std::string rows_path;  // of `file`
  FileStamp rows_stamp;
  std::string form;
  FileStamp stamp;  // of the file at `path`
  bool was_scanned = false;

  RowTable table;   // in memory; only its header is used when there is a mapping
  Mapping mapping;  // of the index file
  std::span<const Block> blocks;
  std::span<const Exception> exceptions;
  std::span<const std::uint32_t> slots;
  Mapping positions;                      // of what follows
  std::span<const RowLocation> elements;  // of a list: where they stand in the user's file; empty for lines
  std::optional<SplitRule> split;
  RowSides sides;                         // of the split
  std::optional<ContentSamples> samples;  // where rows are offsets

  bool has_offsets() const { return samples.has_value(); }
  /// Open for reading. @return MANIFEST if it had been let go and is another one now.
  Result<std::shared_ptr<const FileHandle>> rows_file() const {
    return file != nullptr ? Result(file) : open_files->open(rows_path, rows_stamp);
  }
  /// From here on the file need not be open.
  void let_go(std::shared_ptr<OpenFiles> files) {
    if (files == nullptr) return;
    open_files = std::move(files);
    file = nullptr;
  }
  Status use_positions(const FileHandle& positions_file);
  /// Where the row stands in `file`.
  RowLocation place(std::uint64_t row) const;

  void use_table() {
    blocks = table.blocks;
    exceptions = table.exceptions;
    slots = table.slots;
  }

  /// Maps an index file; false if it is not there, damaged, or belongs to another content.
  bool use_file(const std::string& index_path, const std::string& expected) {
    const FileHandle index(::open(index_path.c_str(), O_RDONLY | O_CLOEXEC));
    struct stat st {};
    if (!index.is_open() || ::fstat(index.get(), &st) != 0) return false;
    const auto n_bytes = static_cast<std::size_t>(st.st_size);
    if (n_bytes < sizeof(Header)) return false;
    Mapping mapped(index, n_bytes);
    if (!mapped.is_mapped()) return false;
    Header header;
    std::memcpy(&header, mapped.data(), sizeof header);
    const bool is_ours = header.magic == kMagic &&
                         header_digest(header) == std::string_view(header.digest.data(), kHashChars) &&
                         fingerprint_of(header) == expected;
    if (!is_ours) return false;
    const std::size_t n_blocks = (header.n_rows + kRowsPerBlock - 1) / kRowsPerBlock;
    const std::size_t wanted = sizeof header + n_blocks * sizeof(Block) + header.n_exceptions * sizeof(Exception) +
                               header.n_rows * sizeof(std::uint32_t);
    if (n_bytes != wanted) return false;
    // The header and every table before the last are multiples of 8 bytes, so each table is aligned for its type.
    const char* at = mapped.data() + sizeof header;
    blocks = {reinterpret_cast<const Block*>(at), n_blocks};
    at += blocks.size_bytes();
    exceptions = {reinterpret_cast<const Exception*>(at), header.n_exceptions};
    at += exceptions.size_bytes();
    slots = {reinterpret_cast<const std::uint32_t*>(at), header.n_rows};
    table = {};
    table.header = header;
    mapping = std::move(mapped);
    return true;
  }
};

Status Manifest::State::use_positions(const FileHandle& positions_file) {
  STOKER_TRY(const FileStamp at, stamp_of(positions_file, path));
  if (at.n_bytes != table.header.n_rows * sizeof(RowLocation)) {
    return Status(Reason::kIndexDir,
                  path + ": the index directory's copy of it is damaged; delete its folder 'unpacked'");
  }
  if (at.n_bytes == 0) return {};
  positions = Mapping(positions_file, at.n_bytes);
  if (!positions.is_mapped()) return Status(Reason::kIndexDir, fmt::format("{}: {}", path, errno_text()));
  elements = {reinterpret_cast<const RowLocation*>(positions.data()), table.header.n_rows};
  return {};
}

Manifest::Manifest(std::unique_ptr<State> state) : state_(std::move(state)) {}
Manifest::Manifest(Manifest&&) noexcept = default;
Manifest& Manifest::operator=(Manifest&&) noexcept = default;
Manifest::~Manifest() = default;

Result<Manifest> Manifest::open(const std::string& path, const ManifestOptions& options, std::stop_token stop) {
  auto state = std::make_unique<State>();
  state->path = path;
  state->max_row_bytes = options.max_row_bytes;
  FileHandle file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.is_open()) return Status(Reason::kManifest, fmt::format("{}: {}", path, errno_text()));
  STOKER_TRY(state->stamp, stamp_of(file, path));
  if (!options.index_dir.empty()) {
    std::error_code error;
    std::filesystem::create_directories(options.index_dir, error);
    if (error) return Status(Reason::kIndexDir, fmt::format("{}: {}", options.index_dir, error.message()));
  }
  STOKER_TRY(Unpacked unpacked, unpack(file, path, state->stamp, options, stop));
  state->form = std::move(unpacked.form);
  state->split = options.split;
  state->rows_path = path;
  state->rows_stamp = state->stamp;
  bool has_name = true;
  if (unpacked.rows.is_open()) {
    file = std::move(unpacked.rows);
    has_name = !unpacked.name.empty();
    if (has_name) state->rows_path = unpacked.name;
    STOKER_TRY(state->rows_stamp, stamp_of(file, state->rows_path));
  }
  state->file = std::make_shared<const FileHandle>(std::move(file));
  if (options.row_numbers == RowNumbers::kCounted) {
    STOKER_CHECKED(open_index(*state, options, stop));
    if (unpacked.positions.is_open()) STOKER_CHECKED(state->use_positions(unpacked.positions));
  } else {
    if (unpacked.positions.is_open()) {
      return Status(Reason::kSettings, path +
                                           ": rows of a JSON list are read in any order only with an index: it is "
                                           "unpacked whole all the same, so use shuffle: rows");
    }
    STOKER_TRY(state->samples, sample_content(*state->file, state->rows_path, state->rows_stamp.n_bytes));
    state->fingerprint = state->samples->fingerprint;
    state->table.header.n_bytes = state->rows_stamp.n_bytes;
  }
  if (has_name) state->let_go(options.open_files);
  return Manifest(std::move(state));
}

Status Manifest::open_index(State& state, const ManifestOptions& options, const std::stop_token& stop) {
  const std::string& rows_path = state.rows_path;
  const FileStamp& stamp = state.rows_stamp;
  const auto index_path = [&](const std::string& fingerprint) {
    return options.index_dir + "/" + fingerprint + ".rows";
  };
  const auto sides_content = [&](const std::string& fingerprint) { return fingerprint + "-" + options.split->name(); };
  const auto sides_path = [&](const std::string& fingerprint) {
    return options.index_dir + "/" + sides_content(fingerprint) + ".sides";
  };
  const auto use_files = [&](const std::string& fingerprint) {
    return state.use_file(index_path(fingerprint), fingerprint) &&
           (!options.split ||
            state.sides.read(sides_path(fingerprint), sides_content(fingerprint), state.table.header.n_rows));
  };
  const bool has_dir = !options.index_dir.empty();
  const std::string hint = has_dir ? hint_path(options.index_dir, rows_path, stamp, "hint") : std::string();
  std::unique_ptr<Claim> claim;
  if (has_dir && options.trust_stat) {
    const auto is_known = [&] {
      state.fingerprint = read_hint(hint, stamp);
      return !state.fingerprint.empty() && use_files(state.fingerprint);
    };
    STOKER_TRY(claim, Claim::take(hint + ".claim", is_known, options.on_progress, stop, options.claim));
    if (claim == nullptr) return {};
  }
  STOKER_TRY(Scanned scanned, scan(*state.file, rows_path, stamp, options, claim.get(), stop));
  state.was_scanned = true;
  state.fingerprint = fingerprint_of(scanned.table.header);
  if (!has_dir) {
    state.table = std::move(scanned.table);
    state.sides = std::move(scanned.sides);
    state.use_table();
    return {};
  }
  const std::string rows = index_path(state.fingerprint);
  if (!state.use_file(rows, state.fingerprint)) STOKER_CHECKED(write_table(rows, scanned.table));
  if (options.split) {
    STOKER_CHECKED(scanned.sides.write(sides_path(state.fingerprint), sides_content(state.fingerprint)));
  }
  if (!use_files(state.fingerprint)) {
    return Status(Reason::kIndexDir, rows + ": what was written does not read back");
  }
  return write_hint(hint, stamp, state.fingerprint);
}

std::uint64_t Manifest::n_rows() const { return state_->table.header.n_rows; }
std::uint64_t Manifest::size_bytes() const { return state_->table.header.n_bytes; }
const std::string& Manifest::path() const { return state_->path; }
const std::string& Manifest::fingerprint() const { return state_->fingerprint; }
bool Manifest::was_scanned() const { return state_->was_scanned; }
RowNumbers Manifest::row_numbers() const { return state_->has_offsets() ? RowNumbers::kOffsets : RowNumbers::kCounted; }
const std::string& Manifest::form() const { return state_->form; }

RowLocation Manifest::State::place(std::uint64_t row) const {
  const std::uint64_t first = row / kRowsPerBlock * kRowsPerBlock;
  const Block& block = blocks[row / kRowsPerBlock];
  RowLocation at{block.offset, slots[row], block.line + (row - first)};
  for (std::uint64_t i = first; i < row; ++i) at.offset += slots[i];
  auto exception = std::lower_bound(exceptions.begin(), exceptions.end(), first,
                                    [](const Exception& e, std::uint64_t wanted) { return e.row < wanted; });
  for (; exception != exceptions.end() && exception->row < row; ++exception) {
    at.offset += exception->n_slot_bytes - slots[exception->row];
    at.line += exception->n_blank_lines;
  }
  if (exception != exceptions.end() && exception->row == row) at.n_bytes = exception->n_row_bytes;
  return at;
}

std::uint64_t Manifest::n_rows(bool held_out) const {
  if (!state_->split) return held_out ? 0 : n_rows();
  return state_->sides.n_on(held_out);
}

std::uint64_t Manifest::nth_row(bool held_out, std::uint64_t k) const {
  return state_->split ? state_->sides.nth(held_out, k) : k;
}

std::uint64_t Manifest::about_n_rows() const { return state_->samples ? state_->samples->n_rows : n_rows(); }

Status Manifest::find_rows(std::uint64_t begin, std::uint64_t end, bool held_out, std::size_t most,
                           std::vector<std::uint64_t>& rows, const std::stop_token& stop) const {
  STOKER_TRY(const auto file, state_->rows_file());
  Status found = find_row_offsets(*file, {begin, end}, {state_->split, held_out}, most, rows, stop);
  return found.ok() ? found : std::move(found).with(state_->path);
}

RowLocation Manifest::row(std::uint64_t row) const {
  if (state_->has_offsets()) return {.offset = row, .n_bytes = 0, .line = 0};
  return state_->elements.empty() ? state_->place(row) : state_->elements[row];
}

std::string Manifest::describe(std::uint64_t row) const {
  const RowLocation at = this->row(row);
  if (at.line == 0) return fmt::format("{} (byte {})", state_->path, at.offset);
  return fmt::format("{}:{} (byte {})", state_->path, at.line, at.offset);
}

Result<std::string_view> Manifest::read(std::uint64_t row, std::string& buffer) const {
  constexpr std::uint64_t kLineEnd = 2;
  const std::uint64_t most = state_->max_row_bytes;
  const auto too_long = [&](std::uint64_t n_bytes) {
    return Status(Reason::kJsonRowTooLong, fmt::format("{} bytes, limit {}", n_bytes, most));
  };
  STOKER_TRY(const auto file, state_->rows_file());
  if (state_->has_offsets()) {
    STOKER_TRY(const bool is_whole, read_line_at(*file, row, state_->samples->row_bytes, most + kLineEnd, buffer));
    if (!is_whole) return Status(Reason::kJsonRowTooLong, fmt::format("more than {} bytes, the limit", most));
  } else {
    const RowLocation at = state_->place(row);
    if (at.n_bytes > most + kLineEnd) return too_long(at.n_bytes);
    buffer.resize(at.n_bytes);
    STOKER_TRY(const std::size_t n_read, read_at(*file, buffer.data(), buffer.size(), at.offset));
    if (n_read != buffer.size()) buffer.clear();
  }
  if (buffer.empty()) {
    return Status(Reason::kManifest, state_->path + ": the file became shorter than it was when it was indexed");
  }
  std::string_view line = buffer;
  if (line.ends_with('\n')) line.remove_suffix(1);
  if (line.ends_with('\r')) line.remove_suffix(1);
  if (line.size() > most) return too_long(line.size());
  return line;
}

Status Manifest::check_unchanged() const {
  STOKER_TRY(const FileStamp now, stamp_of(state_->path));
  if (now != state_->stamp) return Status(Reason::kManifest, state_->path + ": the file changed since it was indexed");
  return {};
}

}  // namespace stoker

#include "index/table.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "base/wire.h"
#include "index/record_log.h"

namespace stoker {
namespace {

constexpr std::string_view kMagic = "STKTAB1\n";
constexpr std::size_t kBlockBytes = 4096;  // about; one read of the disk
constexpr std::size_t kMostBlockBytes = kBlockBytes + RecordLog::kMostValueBytes + 64;
constexpr std::size_t kChecksumBytes = 8;
constexpr std::size_t kPlaceBytes = 16 + 8;
constexpr std::size_t kFootBytes = 64;
constexpr std::size_t kWriteBytes = std::size_t{1} << 20;

bool read_at(int fd, std::uint64_t offset, char* to, std::size_t n) {
  while (n > 0) {
    const ssize_t got = pread(fd, to, n, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    offset += static_cast<std::uint64_t>(got);
    to += got;
    n -= static_cast<std::size_t>(got);
  }
  return true;
}

/// Takes one record off the front of a block. @return false if there is none that follows `key`.
bool take_record(std::string_view& rest, bool is_first, Hash128& key, std::string_view& value) {
  WireReader from(rest);
  const std::uint64_t high = from.varint();
  const std::uint64_t low = from.varint();
  const Hash128 next = high == 0 ? Hash128{key.high, key.low + low} : Hash128{key.high + high, low};
  value = from.text(RecordLog::kMostValueBytes);
  if (!from.ok() || (!is_first && next <= key)) return false;
  key = next;
  rest = rest.substr(rest.size() - from.n_left());
  return true;
}

}  // namespace

Result<std::shared_ptr<const Table>> Table::open(const std::string& path, const Hash128& rules) {
  OwnedFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.is_open()) return Status(Reason::kIndexDir, fmt::format("{}: {}", path, std::strerror(errno)));
  std::shared_ptr<Table> table(new Table(std::move(fd), path));
  Status status = table->read_foot(rules);
  if (!status.ok()) return std::move(status).with(path);
  return std::shared_ptr<const Table>(std::move(table));
}

Status Table::read_foot(const Hash128& rules) {
  struct stat info {};
  if (fstat(fd_.get(), &info) != 0 || !S_ISREG(info.st_mode)) return {Reason::kIndexDir, "cannot be read"};
  const auto file_bytes = static_cast<std::uint64_t>(info.st_size);
  std::string head(kMagic.size(), '\0');
  std::string foot(kFootBytes, '\0');
  if (file_bytes < kMagic.size() + kFootBytes || !read_at(fd_.get(), 0, head.data(), head.size()) ||
      !read_at(fd_.get(), file_bytes - kFootBytes, foot.data(), foot.size())) {
    return {Reason::kIndexDir, "ends early"};
  }
  if (head != kMagic) return {Reason::kIndexDir, "is no table, or another version's"};
  WireReader from(foot);
  const std::uint64_t high = from.fixed64();
  const std::uint64_t low = from.fixed64();
  const std::uint64_t n_records = from.fixed64();
  const std::uint64_t n_blocks = from.fixed64();
  const std::uint64_t blocks_end = from.fixed64();
  const std::uint64_t places_checksum = from.fixed64();
  const std::uint64_t n_bytes = from.fixed64();
  if (from.fixed64() != hash64(std::string_view(foot).substr(0, kFootBytes - kChecksumBytes))) {
    return {Reason::kIndexDir, "has a damaged end"};
  }
  if (Hash128{high, low} != rules) return {Reason::kIndexDir, "was made by other rules"};
  if (n_bytes != file_bytes || n_blocks > file_bytes / kPlaceBytes || blocks_end < kMagic.size() ||
      blocks_end > file_bytes || file_bytes - blocks_end != n_blocks * kPlaceBytes + kFootBytes) {
    return {Reason::kIndexDir, "has another size than it says"};
  }
  std::string places(n_blocks * kPlaceBytes, '\0');
  if (!read_at(fd_.get(), blocks_end, places.data(), places.size())) return {Reason::kIndexDir, "cannot be read"};
  if (hash64(places) != places_checksum) return {Reason::kIndexDir, "has a damaged list of blocks"};
  WireReader place(places);
  std::uint64_t begin = kMagic.size();
  for (std::uint64_t i = 0; i < n_blocks; ++i) {
    TableBlock block;
    block.first_key.high = place.fixed64();
    block.first_key.low = place.fixed64();
    block.begin = place.fixed64();
    const bool follows =
        i == 0 ? block.begin == begin : block.begin > begin && blocks_.back().first_key < block.first_key;
    if (!follows || block.begin >= blocks_end || block.begin - begin > kMostBlockBytes) {
      return {Reason::kIndexDir, "has blocks out of order"};
    }
    begin = block.begin;
    blocks_.push_back(block);
  }
  if (blocks_end - begin > kMostBlockBytes) return {Reason::kIndexDir, "has blocks out of order"};
  n_records_ = n_records;
  n_bytes_ = n_bytes;
  blocks_end_ = blocks_end;
  return {};
}

bool Table::read_block(std::size_t block, std::string& records) const {
  const std::uint64_t begin = blocks_[block].begin;
  const std::uint64_t end = block + 1 < blocks_.size() ? blocks_[block + 1].begin : blocks_end_;
  records.resize(end - begin);
  const bool is_read = records.size() > kChecksumBytes && read_at(fd_.get(), begin, records.data(), records.size());
  if (is_read) {
    const std::string_view all(records);
    const std::size_t n = all.size() - kChecksumBytes;
    const bool is_sound = WireReader(all.substr(n)).fixed64() == hash64(all.substr(0, n));
    records.resize(n);
    if (is_sound) return true;
  }
  if (!is_damage_told_.exchange(true)) {
    log(LogLevel::kWarning, fmt::format("{}: a block at byte {} {}: what it says is measured anew", path_, begin,
                                        is_read ? "is damaged" : "cannot be read"));
  }
  return false;
}

std::optional<std::string> Table::find(const Hash128& key) const {
  const auto after = std::upper_bound(blocks_.begin(), blocks_.end(), key,
                                      [](const Hash128& k, const TableBlock& b) { return k < b.first_key; });
  if (after == blocks_.begin()) return std::nullopt;
  thread_local std::string records;
  if (!read_block(static_cast<std::size_t>(after - blocks_.begin()) - 1, records)) return std::nullopt;
  std::string_view rest(records);
  Hash128 at;
  std::string_view value;
  for (bool is_first = true; !rest.empty() && take_record(rest, is_first, at, value); is_first = false) {
    if (at == key) return std::string(value);
    if (at > key) break;
  }
  return std::nullopt;
}

void TableCursor::next() {
  bool is_first = false;
  for (;;) {
    if (!rest_.empty() && take_record(rest_, is_first, key_, value_)) return;
    if (next_block_ >= table_->blocks_.size()) break;
    rest_ = {};
    if (table_->read_block(next_block_++, records_)) rest_ = records_;
    key_ = {};
    is_first = true;
  }
  is_at_end_ = true;
}

TableWriter::TableWriter(std::string unfinished, const Hash128& rules)
    : unfinished_(std::move(unfinished)),
      rules_(rules),
      fd_(::open(unfinished_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644)),
      pending_(kMagic) {
  if (!fd_.is_open()) status_ = Status(Reason::kIndexDir, fmt::format("{}: {}", unfinished_, std::strerror(errno)));
}

TableWriter::~TableWriter() {
  if (fd_.is_open()) unlink(unfinished_.c_str());
}

void TableWriter::add(const Hash128& key, std::string_view value) {
  if (block_.empty()) {
    blocks_.push_back({key, n_written_ + pending_.size()});
    last_key_ = {};
  }
  WireWriter to(block_);
  const std::uint64_t high = key.high - last_key_.high;
  to.varint(high);
  to.varint(high == 0 ? key.low - last_key_.low : key.low);
  to.text(value);
  last_key_ = key;
  ++n_records_;
  if (block_.size() >= kBlockBytes) end_block();
}

void TableWriter::end_block() {
  if (block_.empty()) return;
  const std::uint64_t checksum = hash64(block_);
  pending_ += block_;
  WireWriter(pending_).fixed64(checksum);
  block_.clear();
  if (pending_.size() < kWriteBytes) return;
  write(pending_);
  pending_.clear();
}

void TableWriter::write(std::string_view bytes) {
  n_written_ += bytes.size();
  while (status_.ok() && !bytes.empty()) {
    const ssize_t n = ::write(fd_.get(), bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      status_ = Status(Reason::kIndexDir, fmt::format("{}: {}", unfinished_, std::strerror(errno)));
      return;
    }
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
}

Status TableWriter::finish(const std::string& path) {
  end_block();
  write(pending_);
  std::string places;
  WireWriter place(places);
  for (const TableBlock& block : blocks_) {
    place.fixed64(block.first_key.high);
    place.fixed64(block.first_key.low);
    place.fixed64(block.begin);
  }
  std::string foot;
  WireWriter to(foot);
  to.fixed64(rules_.high);
  to.fixed64(rules_.low);
  to.fixed64(n_records_);
  to.fixed64(blocks_.size());
  to.fixed64(n_written_);
  to.fixed64(hash64(places));
  to.fixed64(n_written_ + places.size() + kFootBytes);
  to.fixed64(hash64(foot));
  write(places);
  write(foot);
  if (!status_.ok()) return status_;
  // Its bytes before its name: a machine that stops must not leave the name without them.
  if (fsync(fd_.get()) != 0 || rename(unfinished_.c_str(), path.c_str()) != 0) {
    return {Reason::kIndexDir, fmt::format("{}: {}", path, std::strerror(errno))};
  }
  fd_ = OwnedFd();
  return {};
}

}  // namespace stoker

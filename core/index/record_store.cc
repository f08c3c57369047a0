#include "index/record_store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <random>
#include <utility>

#include "base/log.h"
#include "base/rng.h"
#include "index/record_log.h"

namespace stoker {
namespace {

namespace fs = std::filesystem;

// Names in the folder: the table; tables of single processes; logs under way; logs whose process has ended; the lock of
// who merges; what is not finished.
constexpr std::string_view kTable = "table";
constexpr std::string_view kRun = "run-";
constexpr std::string_view kLog = "log-";
constexpr std::string_view kDone = "done-";
constexpr std::string_view kNew = "new-";
constexpr std::string_view kLock = "lock";

constexpr std::size_t kPayloadBytes = std::size_t{256} << 10;
constexpr std::size_t kRecordOverhead = 96;                           // of a record in memory, beside its value
constexpr std::uint64_t kMostLogBytes = std::uint64_t{256} << 20;     // a larger one is not ours
constexpr std::uint64_t kMostMergedBytes = std::uint64_t{256} << 20;  // of logs, in memory at one time
constexpr std::size_t kMostFiles = 8;                                 // with more, they are merged whatever their size
constexpr std::uint64_t kTableShare = 4;                              // merged once they are a quarter of the table
// A log that was not appended to for so long is merged and removed. Its writer, if it lives, begins another.
constexpr std::int64_t kLogAbandonedNs = std::int64_t{15} * 60 * 1'000'000'000;
constexpr std::int64_t kNewAbandonedNs = std::int64_t{60} * 60 * 1'000'000'000;

std::int64_t nanoseconds_of(const timespec& time) { return time.tv_sec * std::int64_t{1'000'000'000} + time.tv_nsec; }

std::string unique_name(std::string_view kind) {
  static std::atomic<std::uint64_t> n_made{0};
  static const std::uint64_t process = std::uint64_t{std::random_device{}()} << 32 | std::random_device{}();
  const auto now = static_cast<std::uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
  return fmt::format("{}{:016x}", kind, mix64(process ^ mix64(now + n_made++) ^ static_cast<std::uint64_t>(getpid())));
}

/// A whole file of a size that was looked at. @return false if it cannot be read.
bool read_file(const std::string& path, std::uint64_t n_bytes, std::string& to) {
  const OwnedFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.is_open()) return false;
  to.resize(n_bytes);
  std::size_t n = 0;
  while (n < to.size()) {
    const ssize_t got = ::read(fd.get(), to.data() + n, to.size() - n);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return false;
    if (got == 0) break;  // shorter by now: its end is torn
    n += static_cast<std::size_t>(got);
  }
  to.resize(n);
  return true;
}

/// A record of a log, while it is merged: borrowed from the log's bytes.
struct Logged {
  Hash128 key;
  std::string_view value;
};

}  // namespace

struct RecordStore::File {
  std::string name;
  std::uint64_t n_bytes = 0;
  std::int64_t changed_ns = 0;

  bool is(std::string_view kind) const { return name.starts_with(kind); }
  bool is_log() const { return is(kLog) || is(kDone); }
};

RecordStore::RecordStore(std::string folder, const Hash128& rules, std::stop_token stop)
    : folder_(std::move(folder)), rules_(rules), tables_(std::make_shared<const Tables>()) {
  if (folder_.empty()) {
    is_kept_ = false;
    return;
  }
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error) {
    give_up(error.message());
  } else {
    merge(std::move(stop));
    load();
  }
}

RecordStore::~RecordStore() {
  flush();
  MutexLock writing(write_mu_);
  if (!log_.is_open()) return;
  const std::string done = std::string(kDone) + log_name_.substr(kLog.size());
  (void)rename(path_of(log_name_).c_str(), path_of(done).c_str());  // else it is merged when it is old
}

std::string RecordStore::path_of(std::string_view name) const { return fmt::format("{}/{}", folder_, name); }

std::vector<RecordStore::File> RecordStore::files() const {
  std::vector<File> out;
  std::error_code error;
  for (fs::directory_iterator at(folder_, error), end; !error && at != end; at.increment(error)) {
    struct stat info {};
    if (lstat(at->path().c_str(), &info) != 0 || !S_ISREG(info.st_mode)) continue;  // another merged it just now
    out.push_back({.name = at->path().filename().string(),
                   .n_bytes = static_cast<std::uint64_t>(info.st_size),
                   .changed_ns = nanoseconds_of(info.st_mtim)});
  }
  // What was written last holds. Two processes that measured the same object say the same, so ties do not matter.
  std::sort(out.begin(), out.end(), [](const File& a, const File& b) {
    return std::pair(a.changed_ns, std::string_view(a.name)) < std::pair(b.changed_ns, std::string_view(b.name));
  });
  return out;
}

void RecordStore::merge(std::stop_token stop) {
  std::uint64_t table_bytes = 0;
  std::uint64_t other_bytes = 0;
  std::size_t n_files = 0;
  for (const File& file : files()) {
    if (file.name == kTable) table_bytes = file.n_bytes;
    if (!file.is_log() && !file.is(kRun)) continue;
    other_bytes += file.n_bytes;
    ++n_files;
  }
  if (n_files == 0 || (n_files <= kMostFiles && other_bytes < table_bytes / kTableShare)) return;
  // Whoever finds it locked goes on without. On a file system without locks two may merge at once: then the second
  // table holds, and what only the first one had read is measured again.
  const OwnedFd lock(::open(path_of(kLock).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!lock.is_open() || flock(lock.get(), LOCK_EX | LOCK_NB) != 0) return;
  struct stat info {};
  // The file server's time, which the logs' times are.
  if (futimens(lock.get(), nullptr) != 0 || fstat(lock.get(), &info) != 0) return;
  while (merge_once(stop, nanoseconds_of(info.st_mtim))) {
  }
}

// Merges tables and as many logs as memory allows. @return whether there is more to merge
bool RecordStore::merge_once(const std::stop_token& stop, std::int64_t now_ns) {
  std::vector<File> all = files();
  const auto is_ended = [&](const File& f) { return f.is(kDone) || f.changed_ns + kLogAbandonedNs < now_ns; };
  // What is merged for good comes first: a log under way is merged as it is now, and again when it has ended.
  std::stable_sort(all.begin(), all.end(), [&](const File& a, const File& b) { return is_ended(a) > is_ended(b); });
  std::vector<std::shared_ptr<const Table>> tables;  // oldest first
  std::vector<std::string> logs;                     // their bytes
  std::vector<Logged> logged;
  std::vector<std::string> merged;
  std::uint64_t log_bytes = 0;
  bool has_more = false;
  for (const File& file : all) {
    if (stop.stop_requested()) return false;
    if (file.is(kNew) && file.changed_ns + kNewAbandonedNs < now_ns) unlink(path_of(file.name).c_str());
    if (file.name == kTable || file.is(kRun)) {
      add_table(file, tables);
      if (file.name != kTable) merged.push_back(file.name);
    } else if (file.is_log() && file.n_bytes <= kMostLogBytes) {
      if (log_bytes > 0 && log_bytes + file.n_bytes > kMostMergedBytes) {
        has_more = has_more || is_ended(file);
        continue;
      }
      std::string bytes;
      if (!read_file(path_of(file.name), file.n_bytes, bytes)) continue;
      log_bytes += bytes.size();
      logs.push_back(std::move(bytes));
      if (is_ended(file)) merged.push_back(file.name);
    }
  }
  for (const std::string& bytes : logs) {
    RecordLog::read(bytes, rules_, [&](const Hash128& key, std::string_view value) { logged.push_back({key, value}); });
  }
  std::stable_sort(logged.begin(), logged.end(), [](const Logged& a, const Logged& b) { return a.key < b.key; });

  std::vector<TableCursor> cursors;
  cursors.reserve(tables.size());
  for (auto& table : tables) cursors.emplace_back(std::move(table));
  TableWriter out(path_of(unique_name(kNew)), rules_);
  std::size_t next = 0;  // of `logged`
  for (std::uint64_t n = 0; !out.has_failed(); ++n) {
    if (n % 4096 == 0 && stop.stop_requested()) return false;
    std::optional<Hash128> least;
    for (const TableCursor& cursor : cursors) {
      if (!cursor.is_at_end() && (!least || cursor.key() < *least)) least = cursor.key();
    }
    if (next < logged.size() && (!least || logged[next].key < *least)) least = logged[next].key;
    if (!least) break;
    std::string value;  // of the newest that has the key
    for (TableCursor& cursor : cursors) {
      if (cursor.is_at_end() || cursor.key() != *least) continue;
      value = cursor.value();
      cursor.next();
    }
    for (; next < logged.size() && logged[next].key == *least; ++next) value = logged[next].value;
    if (!value.empty()) out.add(*least, value);
  }
  if (Status status = out.finish(path_of(kTable)); !status.ok()) {
    give_up(status.message());
    return false;
  }
  for (const std::string& name : merged) {
    if (unlink(path_of(name).c_str()) != 0 && errno != ENOENT) has_more = false;  // it would be merged for ever
  }
  return has_more;
}

void RecordStore::add_table(const File& file, Tables& to) const {
  auto table = Table::open(path_of(file.name), rules_);
  if (!table.ok()) {
    return log(LogLevel::kWarning, fmt::format("{}; what it says is measured anew", table.status().message()));
  }
  to.insert(file.name == kTable ? to.begin() : to.end(), std::move(*table));
}

void RecordStore::load() {
  auto tables = std::make_shared<Tables>();
  std::size_t n_refused = 0;
  {
    MutexLock lock(mu_);
    for (const File& file : files()) {
      if (!file.is_log() || recent_bytes_ > kMostInMemory || file.n_bytes > kMostLogBytes) continue;
      std::string bytes;
      if (!read_file(path_of(file.name), file.n_bytes, bytes)) continue;
      const auto end = RecordLog::read(bytes, rules_,
                                       [&](const Hash128& key, std::string_view value)
                                           STOKER_NO_ANALYSIS { remember(key, std::string(value)); });
      if (end == RecordLog::End::kNotOurs) ++n_refused;
    }
  }
  for (const File& file : files()) {
    if (file.name == kTable || file.is(kRun)) add_table(file, *tables);
  }
  {
    MutexLock lock(mu_);
    tables_ = std::move(tables);
  }
  if (n_refused > 0) {
    log(LogLevel::kInfo,
        fmt::format("{}: {} logs are damaged or another version's and are not used", folder_, n_refused));
  }
}

void RecordStore::remember(const Hash128& key, std::string value) {
  const std::size_t n_bytes = value.size();
  const auto [record, is_new] = recent_.try_emplace(key);
  if (is_new) recent_bytes_ += kRecordOverhead;
  recent_bytes_ += n_bytes - record->second.size();
  record->second = std::move(value);
}

std::optional<std::string> RecordStore::find(const Hash128& key) const {
  std::shared_ptr<const Tables> tables;
  const auto told = [](const std::string& value) { return value.empty() ? std::nullopt : std::optional(value); };
  {
    MutexLock lock(mu_);
    if (const auto found = recent_.find(key); found != recent_.end()) return told(found->second);
    if (spilling_) {
      if (const auto found = spilling_->find(key); found != spilling_->end()) return told(found->second);
    }
    tables = tables_;
  }
  for (auto table = tables->rbegin(); table != tables->rend(); ++table) {
    if (const auto value = (*table)->find(key)) return told(*value);
  }
  return std::nullopt;
}

void RecordStore::put(const Hash128& key, std::string value) {
  MutexLock lock(mu_);
  if (is_kept_) {
    write_later(key, value);
  } else if (recent_bytes_ > kMostInMemory) {
    return;  // there is nowhere else
  }
  remember(key, std::move(value));
}

void RecordStore::write_later(const Hash128& key, std::string_view value) {
  if (pending_.empty() || pending_.back().size() > kPayloadBytes) pending_.emplace_back();
  RecordLog::add(pending_.back(), key, value);
}

void RecordStore::forget(const Hash128& key) {
  constexpr std::size_t kMostForgotten = 1'000'000;
  MutexLock lock(mu_);
  if (is_kept_ && forgotten_.size() < kMostForgotten && forgotten_.insert(key).second) write_later(key, {});
}

void RecordStore::flush() {
  const Status status = [this] {
    MutexLock writing(write_mu_);
    STOKER_CHECKED(append());
    {
      MutexLock lock(mu_);
      if (!is_kept_ || recent_bytes_ <= kMostInMemory) return Status();
    }
    return spill();
  }();
  if (!status.ok()) give_up(status.message());
}

Status RecordStore::append() {
  std::vector<std::string> payloads;
  {
    MutexLock lock(mu_);
    payloads.swap(pending_);
  }
  for (const std::string& payload : payloads) {
    if (!is_kept_) return {};
    STOKER_CHECKED(open_log());
    const std::string block = RecordLog::block(payload);
    const ssize_t n = ::write(log_.get(), block.data(), block.size());
    if (n == static_cast<ssize_t>(block.size())) continue;
    const int why = n < 0 ? errno : ENOSPC;
    log_ = OwnedFd();  // nothing is appended behind a part of a block
    return {Reason::kIndexDir, std::strerror(why)};
  }
  return {};
}

Status RecordStore::open_log() {
  struct stat info {};
  if (log_.is_open() && fstat(log_.get(), &info) == 0 && info.st_nlink > 0) return {};
  // The first one, or it was merged and removed while nothing was appended to it.
  log_name_ = unique_name(kLog);
  log_ = OwnedFd(::open(path_of(log_name_).c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644));
  const std::string head = RecordLog::head(rules_);
  if (log_.is_open() && ::write(log_.get(), head.data(), head.size()) == static_cast<ssize_t>(head.size())) return {};
  const int why = errno;
  log_ = OwnedFd();
  return {Reason::kIndexDir, std::strerror(why)};
}

Status RecordStore::spill() {
  std::shared_ptr<const Records> records;
  {
    MutexLock lock(mu_);
    spilling_ = std::make_shared<const Records>(std::exchange(recent_, {}));
    recent_bytes_ = 0;
    records = spilling_;
  }
  std::vector<const Records::value_type*> sorted;
  sorted.reserve(records->size());
  for (const auto& record : *records) sorted.push_back(&record);
  std::sort(sorted.begin(), sorted.end(), [](const auto* a, const auto* b) { return a->first < b->first; });
  const std::string path = path_of(unique_name(kRun));
  const auto written = [&]() -> Result<std::shared_ptr<const Table>> {
    TableWriter out(path_of(unique_name(kNew)), rules_);
    for (const auto* record : sorted) out.add(record->first, record->second);
    STOKER_CHECKED(out.finish(path));
    return Table::open(path, rules_);
  };
  auto table = written();
  MutexLock lock(mu_);
  spilling_ = nullptr;
  if (!table.ok()) return std::move(table).status();
  auto tables = std::make_shared<Tables>(*tables_);
  tables->push_back(std::move(*table));
  tables_ = std::move(tables);
  if (log_.is_open()) unlink(path_of(log_name_).c_str());  // all of it stands in the table, but for what is forgotten
  log_ = OwnedFd();
  for (const Hash128& key : forgotten_) write_later(key, {});
  return {};
}

void RecordStore::give_up(std::string_view why) {
  if (!is_kept_.exchange(false)) return;
  log(LogLevel::kWarning,
      fmt::format("{}: lengths of samples are not kept for later runs: {}. The run goes on", folder_, why));
}

std::uint64_t RecordStore::n_records() const {
  MutexLock lock(mu_);
  std::uint64_t n = 0;
  for (const auto& table : *tables_) n += table->n_records();
  return n;
}

std::uint64_t RecordStore::n_bytes() const {
  MutexLock lock(mu_);
  std::uint64_t n = 0;
  for (const auto& table : *tables_) n += table->n_bytes();
  return n;
}

}  // namespace stoker

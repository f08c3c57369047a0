#include "source/cache/cache_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <random>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace stoker {
namespace {

using namespace std::chrono_literals;

constexpr const char* kSubfolder = "stoker-objects-1";  // the number changes with the form of what is in it
constexpr int kFolderDigits = 2;                        // of a key: 256 folders
constexpr std::uint64_t kFolders = std::uint64_t{1} << (4 * kFolderDigits);
constexpr std::size_t kPlaceDigits = 16;
constexpr std::size_t kKeyDigits = 64;
constexpr auto kPoll = 2ms;  // flock cannot be stopped while it waits
constexpr auto kLockPatience = 500ms;
constexpr std::time_t kOldTemporaryS = 3600;
constexpr std::uint64_t kMostEvictedAtOnce = std::uint64_t{64} << 20;

Status io_error(const char* what) {
  return {Reason::kFetchIo, fmt::format("{}: {}", what, std::generic_category().message(errno))};
}

std::string folder_name(std::uint64_t folder) { return fmt::format("{:0{}x}", folder, kFolderDigits); }
std::string path_of(const CacheKey& key) {
  return key.hex.substr(0, kFolderDigits) + "/" + key.hex.substr(kFolderDigits);
}

struct Listed {
  std::uint64_t place;
  std::string name;
  bool operator<(const Listed& other) const { return place < other.place; }
};

// The entries of one folder; files that are none of ours are left out.
std::vector<Listed> list_folder(int fd, const std::string& digits) {
  std::vector<Listed> found;
  DIR* folder = fdopendir(fd);
  if (folder == nullptr) {
    close(fd);
    return found;
  }
  while (const dirent* one = readdir(folder)) {
    const std::string_view name = one->d_name;
    if (name.size() != kKeyDigits - kFolderDigits ||
        name.find_first_not_of("0123456789abcdef") != std::string_view::npos)
      continue;
    const std::string start = digits + std::string(name.substr(0, kPlaceDigits - kFolderDigits));
    Listed entry{0, std::string(name)};
    std::from_chars(start.data(), start.data() + start.size(), entry.place, 16);
    found.push_back(std::move(entry));
  }
  closedir(folder);
  return found;
}

int open_folder(int root, const std::string& name) {
  return openat(root, name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
}

// Deletes a file and says what it took; 0 if it was not there.
std::uint64_t delete_counted(int folder, const char* name) {
  struct stat info {};
  if (fstatat(folder, name, &info, AT_SYMLINK_NOFOLLOW) != 0 || unlinkat(folder, name, 0) != 0) return 0;
  return CacheFolder::footprint(static_cast<std::uint64_t>(info.st_size));
}

bool write_all(int fd, std::string_view head, std::span<const std::byte> object) {
  std::size_t done = 0;
  const std::size_t n_bytes = head.size() + object.size();
  while (done < n_bytes) {
    iovec parts[2];
    int n_parts = 0;
    if (done < head.size()) parts[n_parts++] = {const_cast<char*>(head.data()) + done, head.size() - done};
    const std::size_t from = done < head.size() ? 0 : done - head.size();
    parts[n_parts++] = {const_cast<std::byte*>(object.data()) + from, object.size() - from};
    const ssize_t n = writev(fd, parts, n_parts);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    done += static_cast<std::size_t>(n);
  }
  return true;
}

}  // namespace

/// The totals, locked: read, changed, and written back by `save`. A file, not shared memory: a full disk answers a
/// write with an error, a mapped page with a signal.
class CacheFolder::TotalsLock {
 public:
  explicit TotalsLock(CacheFolder& folder) : folder_(folder) {}
  ~TotalsLock() {
    if (is_held_) flock(folder_.totals_.get(), LOCK_UN);
  }
  TotalsLock(const TotalsLock&) = delete;
  TotalsLock& operator=(const TotalsLock&) = delete;

  /// Another process holds it for moments; one that is halted in such a moment must not halt us.
  Status lock() {
    const auto end = std::chrono::steady_clock::now() + kLockPatience;
    while (flock(folder_.totals_.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK && errno != EINTR) return io_error("locking the totals");
      if (std::chrono::steady_clock::now() > end)
        return {Reason::kFetchIo, "another process holds the lock on the totals"};
      std::this_thread::sleep_for(kPoll);
    }
    is_held_ = true;
    return {};
  }
  bool read() {
    OnDisk d{};
    if (pread(folder_.totals_.get(), &d, sizeof d, 0) != sizeof d || d.magic != kMagic) return false;
    totals = {d.used_bytes, d.end_place, 0};
    totals.used_bytes -= std::min(totals.used_bytes, folder_.removed_bytes_.exchange(0));
    return true;
  }
  Status save() {
    const OnDisk d{kMagic, totals.used_bytes, totals.end_place};
    if (pwrite(folder_.totals_.get(), &d, sizeof d, 0) != sizeof d) return io_error("writing the totals");
    return {};
  }

  CacheTotals totals;

 private:
  static constexpr std::uint64_t kMagic = 0x314C41544F54'4353;
  struct OnDisk {
    std::uint64_t magic, used_bytes, end_place;
  };

  CacheFolder& folder_;
  bool is_held_ = false;
};

Result<std::unique_ptr<CacheFolder>> CacheFolder::open(const std::string& dir) {
  const auto wrong = [&](const std::string& why) {
    return Status(Reason::kSettings, fmt::format("cache.dir: {}: {}", dir, why));
  };
  const auto failed = [&](int error) {
    const bool is_disk = error == ENOSPC || error == EDQUOT || error == EIO || error == EROFS;
    const std::string why = std::generic_category().message(error);
    return is_disk ? Status(Reason::kFetchIo, why) : wrong(why);
  };
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  if (error) return failed(error.value());
  const std::string path = dir + "/" + kSubfolder;
  std::unique_ptr<CacheFolder> folder(new CacheFolder());
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return failed(errno);
  folder->root_ = OwnedFd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
  struct stat info {};
  if (!folder->root_.is_open() || fstat(folder->root_.get(), &info) != 0) return failed(errno);
  if (info.st_uid != geteuid()) return wrong("it is another user's; name a folder of your own");
  if (mkdirat(folder->root_.get(), "tmp", 0700) != 0 && errno != EEXIST) return failed(errno);
  folder->temporary_ = OwnedFd(open_folder(folder->root_.get(), "tmp"));
  const auto open_file = [&](const char* name) {
    return OwnedFd(openat(folder->root_.get(), name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  };
  folder->users_ = open_file("users");
  folder->totals_ = open_file("totals");
  if (!folder->temporary_.is_open() || !folder->users_.is_open() || !folder->totals_.is_open()) return failed(errno);
  folder->name_start_ = fmt::format("{}-{:08x}", getpid(), std::random_device()());
  return folder;
}

Result<CacheTotals> CacheFolder::join(std::uint64_t limit_bytes, std::stop_token stop) {
  // Whoever uses the folder holds this lock together with the others, and the system lets go of it for the dead. Who
  // gets it for himself is alone.
  bool is_counted = false;
  for (;;) {
    if (stop.stop_requested()) return Status(Reason::kStopped, "no longer wanted");
    if (!is_counted && flock(users_.get(), LOCK_EX | LOCK_NB) == 0) {
      STOKER_TRY(const CacheTotals totals, count_alone(limit_bytes, stop));
      static_cast<void>(totals);
      is_counted = true;
    }
    if (flock(users_.get(), LOCK_SH | LOCK_NB) == 0) break;  // from alone to together is not one step: others may count
    if (errno != EWOULDBLOCK && errno != EINTR) return io_error("locking the folder");
    std::this_thread::sleep_for(kPoll);
  }
  if (!is_counted) clear_temporary(false);
  TotalsLock shared(*this);
  STOKER_CHECKED(shared.lock());
  if (!shared.read())
    return Status(Reason::kFetchIo, "the totals are damaged; they are counted again when no process uses the folder");
  return shared.totals;
}

Result<CacheTotals> CacheFolder::count_alone(std::uint64_t limit_bytes, std::stop_token stop) {
  TotalsLock shared(*this);
  STOKER_CHECKED(shared.lock());
  if (!shared.read()) shared.totals = {};
  CacheTotals& totals = shared.totals;
  removed_bytes_ = 0;
  clear_temporary(true);
  totals.used_bytes = 0;
  for (std::uint64_t i = 0; i < kFolders; ++i) {
    if (stop.stop_requested()) return Status(Reason::kStopped, "no longer wanted");
    const std::string digits = folder_name(i);
    const OwnedFd folder(open_folder(root_.get(), digits));
    if (!folder.is_open()) continue;
    for (const Listed& one : list_folder(dup(folder.get()), digits)) {
      struct stat info {};
      if (one.place >= totals.end_place) {
        unlinkat(folder.get(), one.name.c_str(), 0);
      } else if (fstatat(folder.get(), one.name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0) {
        totals.used_bytes += footprint(static_cast<std::uint64_t>(info.st_size));
      }
    }
  }
  evict(limit_bytes, totals);
  // The limit was raised, or what filled the folder is gone: as many more places as there is room, if they are like the
  // ones that are kept.
  if (totals.used_bytes < limit_bytes / 10 * 9 && totals.end_place < UINT64_MAX) {
    const double grown = static_cast<double>(totals.end_place) * 0.95 * static_cast<double>(limit_bytes) /
                         static_cast<double>(std::max<std::uint64_t>(totals.used_bytes, 1));
    totals.end_place = grown < 1.8e19 ? static_cast<std::uint64_t>(grown) : UINT64_MAX;
  }
  STOKER_CHECKED(shared.save());
  return totals;
}

void CacheFolder::clear_temporary(bool is_alone) const {
  const int fd = dup(temporary_.get());
  DIR* folder = fd < 0 ? nullptr : fdopendir(fd);
  if (folder == nullptr) {
    if (fd >= 0) close(fd);
    return;
  }
  rewinddir(folder);  // a duplicate shares its place with the original
  while (const dirent* one = readdir(folder)) {
    if (one->d_name[0] == '.') continue;
    struct stat info {};
    const pid_t writer = static_cast<pid_t>(std::strtol(one->d_name, nullptr, 10));
    const bool is_orphan = is_alone || (writer > 0 && kill(writer, 0) != 0 && errno == ESRCH) ||
                           (fstatat(temporary_.get(), one->d_name, &info, AT_SYMLINK_NOFOLLOW) == 0 &&
                            std::time(nullptr) - info.st_mtime > kOldTemporaryS);
    if (is_orphan) unlinkat(temporary_.get(), one->d_name, 0);
  }
  closedir(folder);
}

OwnedFd CacheFolder::find(const CacheKey& key) const {
  return OwnedFd(openat(root_.get(), path_of(key).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
}

void CacheFolder::remove(const CacheKey& key) {
  // Taken away under another name first: of several who remove it, one counts it, and never what replaced it.
  const std::string taken = fmt::format("{}-{}", name_start_, n_written_.fetch_add(1));
  if (renameat(root_.get(), path_of(key).c_str(), temporary_.get(), taken.c_str()) != 0) return;
  removed_bytes_ += delete_counted(temporary_.get(), taken.c_str());
}

void CacheFolder::evict(std::uint64_t to_bytes, CacheTotals& totals) const {
  for (std::uint64_t i = (totals.end_place >> (64 - 4 * kFolderDigits)) + 1; i-- > 0 && totals.used_bytes > to_bytes;) {
    const std::string digits = folder_name(i);
    const OwnedFd folder(open_folder(root_.get(), digits));
    if (!folder.is_open()) continue;
    std::vector<Listed> entries = list_folder(dup(folder.get()), digits);
    std::sort(entries.begin(), entries.end());
    for (; !entries.empty() && totals.used_bytes > to_bytes; entries.pop_back()) {
      const std::uint64_t n_bytes = delete_counted(folder.get(), entries.back().name.c_str());
      totals.used_bytes -= std::min(n_bytes, totals.used_bytes);
      totals.n_evicted += n_bytes > 0 ? 1 : 0;
      totals.end_place = std::min(totals.end_place, entries.back().place);
    }
  }
}

Result<bool> CacheFolder::reserve(std::uint64_t place, std::uint64_t n_bytes, std::uint64_t limit_bytes,
                                  CacheTotals& totals) {
  TotalsLock shared(*this);
  STOKER_CHECKED(shared.lock());
  if (!shared.read()) return Status(Reason::kFetchIo, "the totals are gone");
  if (n_bytes <= limit_bytes && place < shared.totals.end_place && shared.totals.used_bytes + n_bytes > limit_bytes) {
    // A little more than is needed, so that this is not done for every object.
    const std::uint64_t more = std::min(kMostEvictedAtOnce, limit_bytes / 64);
    evict(limit_bytes - n_bytes - std::min(more, limit_bytes - n_bytes), shared.totals);
  }
  const bool fits = place < shared.totals.end_place && shared.totals.used_bytes + n_bytes <= limit_bytes;
  if (fits) shared.totals.used_bytes += n_bytes;
  totals = shared.totals;
  STOKER_CHECKED(shared.save());
  return fits;
}

Result<std::string> CacheFolder::write(std::string_view head, std::span<const std::byte> object) {
  std::string name = fmt::format("{}-{}", name_start_, n_written_.fetch_add(1));
  OwnedFd file(openat(temporary_.get(), name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.is_open()) return io_error("making a file");
  if (write_all(file.get(), head, object)) return name;
  Status error = io_error("writing a file");
  unlinkat(temporary_.get(), name.c_str(), 0);
  return error;
}

Result<bool> CacheFolder::publish(const std::string& temporary, const CacheKey& key, std::uint64_t n_bytes,
                                  CacheTotals& totals) {
  TotalsLock shared(*this);
  STOKER_CHECKED(shared.lock());
  if (!shared.read()) return Status(Reason::kFetchIo, "the totals are gone");
  bool is_there = false;
  Status error;
  if (!temporary.empty() && key.place < shared.totals.end_place) {
    const std::string path = path_of(key);
    const auto take_name = [&] {
      return renameat(temporary_.get(), temporary.c_str(), root_.get(), path.c_str()) == 0;
    };
    if (faccessat(root_.get(), path.c_str(), F_OK, AT_SYMLINK_NOFOLLOW) != 0) {  // under the lock nobody else makes it
      is_there = take_name();
      if (!is_there && errno == ENOENT && mkdirat(root_.get(), key.hex.substr(0, kFolderDigits).c_str(), 0700) == 0)
        is_there = take_name();
      if (!is_there) error = io_error("naming a file");
    }
  }
  if (!is_there) {
    if (!temporary.empty()) unlinkat(temporary_.get(), temporary.c_str(), 0);
    shared.totals.used_bytes -= std::min(n_bytes, shared.totals.used_bytes);
  }
  totals = shared.totals;
  STOKER_CHECKED(shared.save());
  if (!error.ok()) return error;
  return is_there;
}

}  // namespace stoker

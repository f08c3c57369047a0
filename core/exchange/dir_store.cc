#include "exchange/dir_store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "exchange/exchange.h"

namespace stoker {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

constexpr std::int64_t kStaleAfter_s = 24 * 3600;
constexpr const char* kKeptFolder = "kept";

Status failed(std::string_view what, const std::string& path, int error) {
  return Status(Reason::kIndexDir, fmt::format("cannot {} {}: {}", what, path, std::strerror(error)));
}

/// What the file system's own clock says a file was last changed at; 0 if there is none.
std::int64_t changed_at(const std::string& path) {
  struct stat st {};
  return ::lstat(path.c_str(), &st) == 0 ? static_cast<std::int64_t>(st.st_mtime) : 0;
}

/// The newest change of a folder and of what lies directly in it.
std::int64_t newest_in(const fs::path& folder) {
  std::int64_t newest = changed_at(folder.string());
  std::error_code error;
  for (auto at = fs::directory_iterator(folder, error); !error && at != fs::directory_iterator(); at.increment(error)) {
    newest = std::max(newest, changed_at(at->path().string()));
  }
  return newest;
}

/// One writer of a file that nobody else has the name of.
Status write_whole(const std::string& path, const std::string& value) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0) return failed("write", path, errno);
  std::size_t done = 0;
  int error = 0;
  while (done < value.size() && error == 0) {
    const ssize_t n = ::write(fd, value.data() + done, value.size() - done);
    if (n > 0) done += static_cast<std::size_t>(n);
    if (n < 0 && errno != EINTR) error = errno;
  }
  if (::close(fd) != 0 && error == 0) error = errno;  // NFS tells of a full disk here
  if (error == 0) return {};
  ::unlink(path.c_str());
  return failed("write", path, error);
}

/// @return nothing if it is not there, or empty: a crashed machine's.
Result<std::optional<std::string>> read_whole(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    if (errno == ENOENT || errno == ENOTDIR || errno == ESTALE) return std::optional<std::string>();
    return failed("read", path, errno);
  }
  std::string value;
  char part[1 << 14];
  int error = 0;
  for (ssize_t n = 1; n != 0 && error == 0;) {
    n = ::read(fd, part, sizeof part);
    if (n > 0) value.append(part, static_cast<std::size_t>(n));
    if (n < 0 && errno != EINTR) error = errno;
    if (value.size() > ValueStore::kMostValueBytes) error = EFBIG;
  }
  ::close(fd);
  if (error == ESTALE) return std::optional<std::string>();
  if (error != 0) return failed("read", path, error);
  if (value.empty()) {
    ::unlink(path.c_str());
    return std::optional<std::string>();
  }
  return std::optional(std::move(value));
}

class DirStore final : public ValueStore {
 public:
  explicit DirStore(std::string folder) : folder_(std::move(folder)), own_(random_hex(8)) {}

  Result<std::optional<std::string>> get(const StoreKey& key, milliseconds wait, std::stop_token stop) override {
    if (!key.is_valid()) return Status(Reason::kInternal, "a key that the exchange does not know");
    const auto until = std::chrono::steady_clock::now() + wait;
    for (milliseconds pause(2);; pause = std::min(pause * 2, milliseconds(100))) {
      STOKER_TRY(auto value, look_up(key));
      const auto left = std::chrono::duration_cast<milliseconds>(until - std::chrono::steady_clock::now());
      if (value || left <= milliseconds(0)) return value;
      MutexLock lock(mu_);
      never_.wait_for(lock, stop, std::min(pause, left), [] { return false; });
      if (stop.stop_requested()) return Status(Reason::kStopped, "stopped while waiting for another rank");
    }
  }

  Result<std::string> compare_set(const StoreKey& key, const std::string& expected, const std::string& desired,
                                  std::stop_token stop) override {
    if (!key.is_valid()) return Status(Reason::kInternal, "a key that the exchange does not know");
    const std::string path = path_of(key);
    const std::string mine = fmt::format("{}/{}.{}-{}", folder_of(key), key.name, own_, n_written_++);
    // A few times: another rank may drop the folder, or the value, between two steps.
    for (int tries = 0; tries < 8 && !stop.stop_requested(); ++tries) {
      if (!expected.empty()) {
        STOKER_TRY(auto there, look_up(key));
        if (!there || *there != expected) return there.value_or("");
      }
      STOKER_CHECKED(make_folder(folder_of(key)));
      if (Status written = write_whole(mine, desired); !written.ok()) {
        std::error_code error;
        if (!fs::exists(folder_of(key), error)) continue;
        return written;
      }
      const int done = expected.empty() ? ::link(mine.c_str(), path.c_str()) : ::rename(mine.c_str(), path.c_str());
      const int why = errno;
      if (done != 0 || expected.empty()) ::unlink(mine.c_str());
      if (done == 0) return desired;
      if (why == ENOENT || why == ESTALE) continue;
      if (why != EEXIST) return failed("write", path, why);
      STOKER_TRY(auto there, look_up(key));
      if (there) return std::move(*there);
    }
    if (stop.stop_requested()) return Status(Reason::kStopped, "stopped");
    return desired;  // dropped again and again: as if it had been put and forgotten
  }

  Status drop_before(const std::string& space, std::uint64_t window, std::stop_token stop) override {
    const std::string folder = folder_ + "/" + space;
    std::error_code error;
    std::vector<fs::path> old;
    for (auto at = fs::directory_iterator(folder, error); !error && at != fs::directory_iterator();
         at.increment(error)) {
      const std::string name = at->path().filename().string();
      const bool is_window = !name.empty() && name.size() <= 20 && name.find_first_not_of("0123456789") == name.npos;
      if (is_window && std::strtoull(name.c_str(), nullptr, 10) < window) old.push_back(at->path());
    }
    for (const fs::path& path : old) {
      if (stop.stop_requested()) break;
      fs::remove_all(path, error);  // another rank may be at it too: whoever is late finds nothing
    }
    return {};
  }

  std::string describe() const override { return "the folder " + folder_; }
  std::string left_by(const std::string& space) const override { return folder_ + "/" + space; }

 private:
  std::string folder_of(const StoreKey& key) const {
    return fmt::format("{}/{}/{}", folder_, key.space,
                       key.window == StoreKey::kKept ? kKeptFolder : std::to_string(key.window));
  }
  std::string path_of(const StoreKey& key) const { return folder_of(key) + "/" + key.name; }

  static Status make_folder(const std::string& folder) {
    std::error_code error;
    fs::create_directories(folder, error);
    if (!error) return {};
    return Status(Reason::kIndexDir, fmt::format("cannot make {}: {}", folder, error.message()));
  }

  Result<std::optional<std::string>> look_up(const StoreKey& key) const {
    STOKER_TRY(auto value, read_whole(path_of(key)));
    if (value) return value;
    // An NFS client may remember for half a minute that a file is missing; opening its folder asks the server.
    const int fd = ::open(folder_of(key).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return std::optional<std::string>();
    ::close(fd);
    return read_whole(path_of(key));
  }

  const std::string folder_;
  const std::string own_;
  std::atomic<std::uint64_t> n_written_{0};

  Mutex mu_;  // for waiting only
  std::condition_variable_any never_;
};

}  // namespace

Result<std::unique_ptr<ValueStore>> open_dir_store(const std::string& folder, const std::string& stale) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return Status(Reason::kIndexDir, fmt::format("cannot make {}: {}", folder, error.message()));
  // The time of day as the file system has it, whatever this node thinks.
  const std::string probe = fmt::format("{}/.now-{}", folder, random_hex(8));
  STOKER_CHECKED(write_whole(probe, "now"));
  const std::int64_t now = changed_at(probe);
  ::unlink(probe.c_str());
  for (auto at = fs::directory_iterator(folder, error); !error && at != fs::directory_iterator(); at.increment(error)) {
    if (now - newest_in(at->path()) > kStaleAfter_s) fs::remove_all(at->path(), error);
  }
  if (!stale.empty() && fs::exists(stale, error) && now - newest_in(stale) > kStaleAfter_s) {
    fs::remove_all(stale, error);
  }
  return std::unique_ptr<ValueStore>(std::make_unique<DirStore>(folder));
}

}  // namespace stoker

#include "manifest/files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

#include "base/hash.h"

namespace stoker {
namespace {

FileStamp stamp_of(const struct stat& st) {
  return {static_cast<std::uint64_t>(st.st_size), std::int64_t{st.st_mtim.tv_sec} * 1'000'000'000 + st.st_mtim.tv_nsec,
          static_cast<std::uint64_t>(st.st_ino), static_cast<std::uint64_t>(st.st_dev)};
}

std::string hint_text(const FileStamp& stamp, const std::string& name) {
  return fmt::format("{} {} {} {}\n", stamp.n_bytes, stamp.modified_ns, stamp.inode, name);
}

Status write_anew(const std::string& path, std::span<const std::pair<const void*, std::size_t>> pieces,
                  bool survives_power_loss) {
  std::string temporary = path + ".XXXXXX";
  const FileHandle file(::mkstemp(temporary.data()));
  const auto failed = [&] {
    Status status(Reason::kIndexDir, fmt::format("{}: {}", path, errno_text()));
    if (file.is_open()) ::unlink(temporary.c_str());
    return status;
  };
  if (!file.is_open()) return failed();
  for (const auto& [data, n_bytes] : pieces) {
    if (!write_all(file, data, n_bytes)) return failed();
  }
  if (::fchmod(file.get(), 0644) != 0 || (survives_power_loss && ::fsync(file.get()) != 0)) return failed();
  if (::rename(temporary.c_str(), path.c_str()) != 0) return failed();
  return {};
}

}  // namespace

std::string errno_text() { return std::generic_category().message(errno); }

FileHandle::~FileHandle() {
  if (fd_ >= 0) ::close(fd_);
}

Mapping::Mapping(const FileHandle& file, std::size_t n_bytes) {
  void* const data = n_bytes > 0 ? ::mmap(nullptr, n_bytes, PROT_READ, MAP_SHARED, file.get(), 0) : MAP_FAILED;
  if (data == MAP_FAILED) return;
  data_ = static_cast<const char*>(data);
  n_bytes_ = n_bytes;
}

Mapping::~Mapping() {
  if (data_ != nullptr) ::munmap(const_cast<char*>(data_), n_bytes_);
}

Result<FileStamp> stamp_of(const FileHandle& file, const std::string& path) {
  struct stat st {};
  if (::fstat(file.get(), &st) != 0) return Status(Reason::kManifest, fmt::format("{}: {}", path, errno_text()));
  if (!S_ISREG(st.st_mode)) return Status(Reason::kManifest, fmt::format("{}: not a regular file", path));
  return stamp_of(st);
}

Result<FileStamp> stamp_of(const std::string& path) {
  struct stat st {};
  if (::stat(path.c_str(), &st) != 0) return Status(Reason::kManifest, fmt::format("{}: {}", path, errno_text()));
  return stamp_of(st);
}

Result<std::size_t> read_at(const FileHandle& file, char* into, std::size_t n_bytes, std::uint64_t offset) {
  std::size_t done = 0;
  while (done < n_bytes) {
    const ssize_t n = ::pread(file.get(), into + done, n_bytes - done, static_cast<off_t>(offset + done));
    if (n == 0) break;
    if (n < 0) {
      if (errno == EINTR) continue;
      return Status(Reason::kFetchIo, errno_text());
    }
    done += static_cast<std::size_t>(n);
  }
  return done;
}

bool write_all(const FileHandle& file, const void* data, std::size_t n_bytes) {
  const char* p = static_cast<const char*>(data);
  while (n_bytes > 0) {
    const ssize_t n = ::write(file.get(), p, n_bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    p += n;
    n_bytes -= static_cast<std::size_t>(n);
  }
  return true;
}

Status write_atomically(const std::string& path, std::span<const std::pair<const void*, std::size_t>> pieces) {
  return write_anew(path, pieces, true);
}

std::string hint_path(const std::string& index_dir, const std::string& path, const FileStamp& stamp, const char* kind) {
  std::error_code ignored;
  const std::filesystem::path absolute = std::filesystem::absolute(path, ignored);
  Digest digest;
  digest.add(ignored ? std::string_view(path) : std::string_view(absolute.native()));
  digest.add(hint_text(stamp, {}));
  return fmt::format("{}/{}.{}", index_dir, digest.hex(), kind);
}

Status write_hint(const std::string& hint, const FileStamp& stamp, const std::string& name) {
  const std::string text = hint_text(stamp, name);
  const std::array<std::pair<const void*, std::size_t>, 1> pieces = {{{text.data(), text.size()}}};
  return write_anew(hint, pieces, false);  // a flush takes milliseconds, thousands of files have a hint each
}

std::string read_hint(const std::string& hint, const FileStamp& stamp) {
  const FileHandle file(::open(hint.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.is_open()) return {};
  std::string text(512, '\0');
  auto read = read_at(file, text.data(), text.size(), 0);
  if (!read.ok()) return {};
  text.resize(*read);
  const std::size_t last = text.rfind(' ');
  if (last == std::string::npos || !text.ends_with('\n')) return {};
  std::string name = text.substr(last + 1, text.size() - last - 2);
  const bool is_plain = name.find_first_not_of("0123456789abcdef-") == std::string::npos;
  return is_plain && text == hint_text(stamp, name) ? name : std::string();
}

}  // namespace stoker

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "base/result.h"

namespace stoker {

/// errno in words.
std::string errno_text();

/// A file descriptor that is closed.
class FileHandle {
 public:
  FileHandle() = default;
  explicit FileHandle(int fd) : fd_(fd) {}
  FileHandle(FileHandle&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileHandle& operator=(FileHandle&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileHandle();
  int get() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

/// A read-only mapping of a whole file.
class Mapping {
 public:
  Mapping() = default;
  /// Of an open file of `n_bytes`; is_mapped() is false where that fails.
  Mapping(const FileHandle& file, std::size_t n_bytes);
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), n_bytes_(std::exchange(other.n_bytes_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(n_bytes_, other.n_bytes_);
    return *this;
  }
  ~Mapping();
  bool is_mapped() const { return data_ != nullptr; }
  const char* data() const { return data_; }
  std::size_t n_bytes() const { return n_bytes_; }

 private:
  const char* data_ = nullptr;
  std::size_t n_bytes_ = 0;
};

/// What says that a file is still the one it was, short of reading it.
struct FileStamp {
  std::uint64_t n_bytes = 0;
  std::int64_t modified_ns = 0;
  std::uint64_t inode = 0;
  std::uint64_t device = 0;

  bool operator==(const FileStamp&) const = default;
};

/// @return MANIFEST if it is no regular file; `path` is for the message.
Result<FileStamp> stamp_of(const FileHandle& file, const std::string& path);
Result<FileStamp> stamp_of(const std::string& path);

/// pread until `n_bytes` or the end of the file; the number read. @return FETCH_IO.
Result<std::size_t> read_at(const FileHandle& file, char* into, std::size_t n_bytes, std::uint64_t offset);
/// False: errno says why.
bool write_all(const FileHandle& file, const void* data, std::size_t n_bytes);

/// Writes a file that is either complete or not there: a name of its own, then a rename. Whoever renames last has the
/// same content. @return INDEX_DIR.
Status write_atomically(const std::string& path, std::span<const std::pair<const void*, std::size_t>> pieces);

/// A small text beside the index, found by a manifest's path and stamp: which files belong to it. Never more than a
/// hint: losing it costs a scan. The device is no part of it, since nodes number their mounts as they like; a path that
/// is another file on each node has a hint for each.
/// @param kind  Ends its name: "hint".
std::string hint_path(const std::string& index_dir, const std::string& path, const FileStamp& stamp, const char* kind);
Status write_hint(const std::string& hint, const FileStamp& stamp, const std::string& name);
/// Empty if there is none for this stamp. Names are of 0-9, a-f and '-'.
std::string read_hint(const std::string& hint, const FileStamp& stamp);

}  // namespace stoker

#include "mem/shared_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace stoker {
namespace {

/// What the system still has for shared memory without a name, which is taken from memory and swap and lies on no
/// mount.
std::size_t free_bytes() {
  std::ifstream file("/proc/meminfo");
  std::size_t free = 0, kib = 0;
  for (std::string name, unit; file >> name >> kib; std::getline(file, unit))
    if (name == "MemAvailable:" || name == "SwapFree:") free += kib << 10;
  return file.eof() ? free : std::numeric_limits<std::size_t>::max();
}

Status no_room(std::size_t n_bytes, std::string_view why) {
  return Status(Reason::kShmTooSmall, fmt::format("shared memory for a pack: need {:.1f} MB, {}; lower "
                                                  "speed.memory_limit or pack.tokens_per_pack",
                                                  static_cast<double>(n_bytes) / 1e6, why));
}

Status no_room(std::size_t n_bytes, int error) {
  return no_room(n_bytes, fmt::format("free {:.1f} MB in the system's memory and swap (memfd): {}",
                                      static_cast<double>(free_bytes()) / 1e6, std::strerror(error)));
}

/// Looks before anything is taken: what the system does not have would end some process, and a file beyond its limit
/// would send a signal to this one.
Status check_room(std::size_t n_bytes) {
  rlimit file_size{};
  if (getrlimit(RLIMIT_FSIZE, &file_size) == 0 && file_size.rlim_cur != RLIM_INFINITY && file_size.rlim_cur < n_bytes)
    return no_room(n_bytes, fmt::format("free {:.1f} MB in a memfd under this process's limit of a file's size "
                                        "(ulimit -f)",
                                        static_cast<double>(file_size.rlim_cur) / 1e6));
  return n_bytes > free_bytes() ? no_room(n_bytes, ENOMEM) : Status();
}

}  // namespace

Result<SharedMemory> SharedMemory::make(std::size_t n_bytes) {
  STOKER_CHECKED(check_room(n_bytes));
  SharedMemory made;
  made.fd_ = OwnedFd(memfd_create("stoker-pack", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!made.fd_.is_open()) return no_room(n_bytes, errno);
  // All pages now: what is short is an error here and no SIGBUS later.
  const auto size = static_cast<off_t>(n_bytes);
  int failed = 0;
  do failed = posix_fallocate(made.fd(), 0, size);
  while (failed == EINTR);
  if (failed != 0) return no_room(n_bytes, failed);
  void* p = mmap(nullptr, n_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, made.fd(), 0);
  if (p == MAP_FAILED) return no_room(n_bytes, errno);
  made.data_ = static_cast<std::byte*>(p);
  made.size_ = n_bytes;
  // Kernels before 5.1 do not know the last one; readers map it read-only anyway.
  (void)fcntl(made.fd(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE);
  if (fcntl(made.fd(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) return no_room(n_bytes, errno);
  return made;
}

Result<SharedMemory> SharedMemory::attach(const OwnedFd& file, std::size_t n_bytes) {
  const auto refused = [](std::string_view what) {
    return Status(Reason::kPeerMismatch, fmt::format("the memory that a peer handed over {}", what));
  };
  struct stat info {};
  const int seals = fcntl(file.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) return refused("could be cut while it is read");
  if (fstat(file.get(), &info) != 0 || info.st_size < 0 || static_cast<std::size_t>(info.st_size) < n_bytes)
    return refused("is smaller than announced");
  void* p = mmap(nullptr, n_bytes, PROT_READ, MAP_SHARED | MAP_POPULATE, file.get(), 0);
  if (p == MAP_FAILED) return no_room(n_bytes, errno);
  SharedMemory attached;
  attached.data_ = static_cast<std::byte*>(p);
  attached.size_ = n_bytes;
  return attached;
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)), fd_(std::move(other.fd_)) {}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(fd_, other.fd_);
  return *this;
}

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) munmap(data_, size_);
}

}  // namespace stoker

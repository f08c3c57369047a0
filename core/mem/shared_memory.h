#pragma once

#include <cstddef>

#include "base/result.h"
#include "exec/owned_fd.h"

namespace stoker {

/// Memory that other processes of the machine can map. It has no name, so nothing is left of it when the last process
/// that maps it ends, however that happens. Move-only; unmapped when destroyed.
class SharedMemory {
 public:
  /// Writable, faulted in, and sealed: it keeps its size, and whoever else maps it can only read.
  /// It lies in no mount: a small /dev/shm does not matter.
  /// @return SHM_TOO_SMALL with what is needed and what is free, if the system or a limit has no room.
  static Result<SharedMemory> make(std::size_t n_bytes);
  /// Maps what another process made, to read.
  /// @return PEER_MISMATCH unless it has at least `n_bytes` and can lose none of them; SHM_TOO_SMALL.
  static Result<SharedMemory> attach(const OwnedFd& file, std::size_t n_bytes);

  SharedMemory() = default;
  ~SharedMemory();
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;

  std::byte* data() const { return data_; }  ///< not to be written through after attach()
  std::size_t size() const { return size_; }
  int fd() const { return fd_.get(); }  ///< for handing over; after attach() there is none

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  OwnedFd fd_;
};

}  // namespace stoker

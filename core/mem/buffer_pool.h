#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/mutex.h"

namespace stoker {

/// Keeps the memory of buffers for later ones of about the same size. Pages that go back to the system have to be
/// faulted in and cleared again, and glibc gives back the heap of a thread whenever it is empty for a moment.
/// What is idle is bounded, and stands outside of the memory budget; what was not asked for longest goes first.
/// Threads: any.
class BufferPool {
 public:
  /// Sizes that are kept. The allocator is good at smaller ones; larger ones are rare, and would crowd out the others.
  static constexpr std::size_t kSmallest = std::size_t{16} << 10;
  static constexpr std::size_t kLargest = std::size_t{32} << 20;
  static constexpr std::size_t kMaxIdleBytes = std::size_t{128} << 20;

  explicit BufferPool(std::size_t max_idle_bytes) : max_idle_bytes_(max_idle_bytes) {}
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  /// The process's own. Never destroyed: buffers may outlive everything else.
  static BufferPool& shared();

  /// Memory for `n_bytes`, at most an eighth larger; its content is not initialised. Throws std::bad_alloc.
  std::byte* take(std::size_t n_bytes) STOKER_EXCLUDES(mu_);
  /// @param n_bytes  what was asked for
  void give_back(std::byte* data, std::size_t n_bytes) noexcept STOKER_EXCLUDES(mu_);

  std::size_t idle_bytes() const STOKER_EXCLUDES(mu_);

 private:
  static constexpr int kPerOctave = 8;
  static constexpr std::size_t kClasses = 11 * kPerOctave;  // kSmallest to kLargest
  struct SizeClass {
    std::vector<std::byte*> idle;
    std::uint64_t asked_at = 0;  // in n_takes_
  };
  struct Place {
    std::size_t number, bytes;  // of the class
  };
  static Place class_of(std::size_t n_bytes);
  void make_room(std::size_t n_bytes) STOKER_REQUIRES(mu_);

  const std::size_t max_idle_bytes_;

  mutable Mutex mu_;
  std::array<SizeClass, kClasses> classes_ STOKER_GUARDED_BY(mu_);
  std::size_t idle_bytes_ STOKER_GUARDED_BY(mu_) = 0;
  std::uint64_t n_takes_ STOKER_GUARDED_BY(mu_) = 0;
};

/// Memory of the shared pool, as a std::unique_ptr owns it.
struct GiveBack {
  std::size_t n_bytes = 0;
  void operator()(std::byte* data) const { BufferPool::shared().give_back(data, n_bytes); }
};
using PooledBytes = std::unique_ptr<std::byte[], GiveBack>;
inline PooledBytes take_pooled(std::size_t n_bytes) { return {BufferPool::shared().take(n_bytes), GiveBack{n_bytes}}; }

}  // namespace stoker

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "mem/buffer_pool.h"

namespace stoker {

/// Memory that grows to the largest size asked for and stays, aligned to 64 bytes; of the process's pool, which has it
/// again in the end. New memory is zero; old content is kept only while the size fits.
class Scratch {
 public:
  template <typename T>
  T* get(std::size_t n) {
    const std::size_t n_bytes = n * sizeof(T);
    if (n_bytes > size_) {
      data_.reset();
      size_ = 0;
      data_ = take_pooled(n_bytes + kAlign);
      size_ = n_bytes;
      std::memset(begin(), 0, n_bytes);
    }
    return reinterpret_cast<T*>(begin());
  }

 private:
  static constexpr std::size_t kAlign = 64;
  std::byte* begin() const {
    const auto at = reinterpret_cast<std::uintptr_t>(data_.get());
    return data_.get() + (kAlign - at % kAlign) % kAlign;
  }
  PooledBytes data_;
  std::size_t size_ = 0;
};

inline constexpr std::size_t round_up(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }

}  // namespace stoker

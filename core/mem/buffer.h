#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "mem/budget.h"
#include "mem/buffer_pool.h"

namespace stoker {

/// Bytes whose content is not initialised: a home for one encoded object, in memory that is used again. Move-only.
class Buffer {
 public:
  Buffer() = default;
  /// @param lease  is given back with the memory
  explicit Buffer(std::size_t n_bytes, Lease lease = {})
      : lease_(std::move(lease)), data_(take_pooled(n_bytes)), size_(n_bytes) {}

  std::byte* data() { return data_.get(); }
  const std::byte* data() const { return data_.get(); }
  std::size_t size() const { return size_; }
  std::span<const std::byte> bytes() const { return {data_.get(), size_}; }
  std::span<std::byte> writable() { return {data_.get(), size_}; }
  /// Makes the buffer look smaller; the memory stays.
  void shrink(std::size_t n_bytes) { size_ = n_bytes < size_ ? n_bytes : size_; }

 private:
  Lease lease_;  // first: given back when the memory is gone
  PooledBytes data_;
  std::size_t size_ = 0;
};

}  // namespace stoker

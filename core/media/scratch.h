#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>

namespace stoker {

/// Memory that grows to the largest size asked for and stays, aligned to 64 bytes. New memory is zero; old content is
/// kept only while the size fits.
class Scratch {
 public:
  template <typename T>
  T* get(std::size_t n) {
    const std::size_t n_bytes = n * sizeof(T);
    if (n_bytes > size_) {
      data_.reset();
      size_ = 0;
      data_.reset(static_cast<std::byte*>(::operator new[](n_bytes, kAlign)));
      std::memset(data_.get(), 0, n_bytes);
      size_ = n_bytes;
    }
    return reinterpret_cast<T*>(data_.get());
  }

 private:
  static constexpr std::align_val_t kAlign{64};
  struct Delete {
    void operator()(std::byte* data) const { ::operator delete[](data, kAlign); }
  };
  std::unique_ptr<std::byte[], Delete> data_;
  std::size_t size_ = 0;
};

inline constexpr std::size_t round_up(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }

}  // namespace stoker

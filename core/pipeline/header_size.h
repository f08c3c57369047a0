#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace stoker {

/// How many bytes of an object are asked for first, when its size is to be learnt from its header: few are soon not
/// enough (a phone's picture has 10 to 60 kB of metadata in front), many are read twice. Follows what the last headers
/// of the same manifest needed. Changes what is read, never what comes of it. Not thread-safe.
class HeaderSize {
 public:
  /// Before anything is known: enough for a picture without much metadata.
  static constexpr std::uint64_t kStart = 2048;
  /// What it can be, beside `kStart`.
  static constexpr std::array<std::uint64_t, 13> kSizes = {512,   1024,  2048,  3072,  4096,  6144, 8192,
                                                           12288, 16384, 24576, 32768, 49152, 65536};
  /// A smaller object may come whole with its header, and needs no second request.
  static constexpr std::uint64_t kMostWhole = 16384;
  /// What a request costs, beside its bytes: as much as these.
  static constexpr std::uint64_t kRequest = 16384;

  /// @param dp_size  One rank of so many uses an object, but each reads its header.
  explicit HeaderSize(std::int32_t dp_size) : dp_size_(dp_size) {}

  std::uint64_t get() const { return size_; }
  /// @param needed  Bytes of the object from which its size could be told. @param total  Bytes of all of it.
  void learned(std::uint64_t needed, std::uint64_t total);

 private:
  static constexpr std::size_t kRemembered = 256;
  static constexpr std::size_t kPerLook = 32;
  struct Header {
    std::uint64_t needed = 0, total = 0;
  };
  double cost(std::uint64_t size) const;

  const std::int32_t dp_size_;
  std::uint64_t size_ = kStart;
  std::vector<Header> last_;  // a ring
  std::size_t n_learned_ = 0;
};

}  // namespace stoker

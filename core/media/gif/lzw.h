#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"

namespace stoker {

/// Unpacks the pixels of a GIF frame. Source: GIF 89a, appendix F; where encoders bend it: Pillow 13, GifDecode.c.
class GifLzw {
 public:
  /// @param blocks  The file from the byte behind the minimum code size on; borrowed until the last pixel.
  /// @param code_bits  The minimum code size. @return IMG_CORRUPT if there is no such size.
  Status start(std::span<const std::byte> blocks, int code_bits);

  /// The next `n` colour indices. @return IMG_TRUNCATED, or IMG_CORRUPT.
  Status read(std::uint8_t* to, std::size_t n);

  /// Bytes of the blocks that were looked at.
  std::size_t n_read() const { return at_; }

 private:
  static constexpr int kMaxBits = 12;
  static constexpr std::size_t kTableSize = std::size_t{1} << kMaxBits;

  Status next_code(std::size_t& code);
  Status next_string();

  std::span<const std::byte> blocks_;
  std::size_t at_ = 0;
  std::size_t block_left_ = 0;  // bytes of the block under way
  std::uint32_t bits_ = 0;
  int n_bits_ = 0;

  int first_bits_ = 0;  // of a code after a clear
  int code_bits_ = 0;
  std::size_t clear_ = 0;
  std::size_t next_ = 0;
  std::size_t last_code_ = 0;
  std::uint8_t last_first_ = 0;  // the string before begins with it
  bool is_after_clear_ = true;
  std::array<std::uint8_t, kTableSize> value_{};    // last pixel of each string
  std::array<std::uint16_t, kTableSize> prefix_{};  // the string without it

  // The string under way, filled from the end.
  std::array<std::uint8_t, kTableSize + 1> string_{};
  std::size_t string_begin_ = kTableSize + 1;
};

}  // namespace stoker

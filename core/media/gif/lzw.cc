#include "media/gif/lzw.h"

#include <algorithm>

namespace stoker {

Status GifLzw::start(std::span<const std::byte> blocks, int code_bits) {
  if (code_bits < 1 || code_bits >= kMaxBits) return {Reason::kImgCorrupt, "GIF with an impossible code size"};
  blocks_ = blocks;
  at_ = 0;
  block_left_ = 0;
  bits_ = 0;
  n_bits_ = 0;
  first_bits_ = code_bits + 1;
  clear_ = std::size_t{1} << code_bits;
  code_bits_ = first_bits_;
  next_ = clear_ + 2;
  is_after_clear_ = true;
  string_begin_ = string_.size();
  return {};
}

Status GifLzw::next_code(std::size_t& code) {
  while (n_bits_ < code_bits_) {
    if (block_left_ == 0) {
      if (at_ >= blocks_.size()) return {Reason::kImgTruncated, "GIF ends inside its pixels"};
      block_left_ = std::to_integer<std::size_t>(blocks_[at_++]);
      if (block_left_ == 0) return {Reason::kImgCorrupt, "GIF frame whose pixels end early"};
      if (block_left_ > blocks_.size() - at_) return {Reason::kImgTruncated, "GIF ends inside its pixels"};
    }
    bits_ |= std::to_integer<std::uint32_t>(blocks_[at_++]) << n_bits_;
    n_bits_ += 8;
    --block_left_;
  }
  code = bits_ & ((1U << code_bits_) - 1);
  bits_ >>= code_bits_;
  n_bits_ -= code_bits_;
  return {};
}

Status GifLzw::next_string() {
  const Status broken(Reason::kImgCorrupt, "GIF with a broken code");
  for (;;) {
    std::size_t code = 0;
    STOKER_CHECKED(next_code(code));
    if (code == clear_) {
      code_bits_ = first_bits_;
      next_ = clear_ + 2;
      is_after_clear_ = true;
      continue;
    }
    if (code == clear_ + 1) return {Reason::kImgCorrupt, "GIF frame whose pixels end early"};
    string_begin_ = string_.size();
    if (is_after_clear_) {
      if (code > clear_) return broken;
      is_after_clear_ = false;
      last_first_ = static_cast<std::uint8_t>(code);
      last_code_ = code;
      string_[--string_begin_] = last_first_;
      return {};
    }
    if (code > next_ || code >= kTableSize + (code == next_ ? 1 : 0)) return broken;
    std::size_t rest = code;
    if (code == next_) {  // the string that this very code makes
      string_[--string_begin_] = last_first_;
      rest = last_code_;
    }
    while (rest >= clear_) {
      if (string_begin_ <= 1) return broken;
      string_[--string_begin_] = value_[rest];
      rest = prefix_[rest];
    }
    last_first_ = static_cast<std::uint8_t>(rest);
    string_[--string_begin_] = last_first_;
    if (next_ < kTableSize) {
      value_[next_] = last_first_;
      prefix_[next_] = static_cast<std::uint16_t>(last_code_);
      if (next_ == (std::size_t{1} << code_bits_) - 1 && code_bits_ < kMaxBits) ++code_bits_;
      ++next_;
    }
    last_code_ = code;
    return {};
  }
}

Status GifLzw::read(std::uint8_t* to, std::size_t n) {
  while (n > 0) {
    if (string_begin_ == string_.size()) STOKER_CHECKED(next_string());
    const std::size_t taken = std::min(n, string_.size() - string_begin_);
    std::copy_n(string_.data() + string_begin_, taken, to);
    string_begin_ += taken;
    to += taken;
    n -= taken;
  }
  return {};
}

}  // namespace stoker

#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace stoker {

/// Appends plain values to a string of bytes; WireReader gives them back. Little-endian, without padding.
class WireWriter {
 public:
  explicit WireWriter(std::string& to) : to_(to) {}

  void byte(std::uint8_t value) { to_ += static_cast<char>(value); }
  /// Seven bits a byte, the lowest first; small values take one.
  void varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) byte(static_cast<std::uint8_t>(value | 0x80));
    byte(static_cast<std::uint8_t>(value));
  }
  void fixed64(std::uint64_t value) {
    for (int shift = 0; shift < 64; shift += 8) byte(static_cast<std::uint8_t>(value >> shift));
  }
  void text(std::string_view value) {  ///< with its length
    varint(value.size());
    to_ += value;
  }

 private:
  std::string& to_;
};

/// Reads foreign bytes: never beyond them, and never allocates. Once something did not fit, everything further is 0 or
/// empty and ok() is false. Borrows the bytes.
class WireReader {
 public:
  explicit WireReader(std::string_view bytes) : rest_(bytes) {}

  bool ok() const { return is_ok_; }
  /// Everything was read, and fitted.
  bool is_at_end() const { return is_ok_ && rest_.empty(); }
  std::size_t n_left() const { return rest_.size(); }
  void fail() {
    is_ok_ = false;
    rest_ = {};
  }

  std::uint8_t byte() {
    if (rest_.empty()) {
      fail();
      return 0;
    }
    const auto value = static_cast<std::uint8_t>(rest_.front());
    rest_.remove_prefix(1);
    return value;
  }
  /// In [0, most]; only the shortest spelling is taken, so that equal values are equal bytes.
  std::uint64_t varint(std::uint64_t most = UINT64_MAX) {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const std::uint64_t bits = byte();
      if (shift == 63 && bits > 1) break;
      value |= (bits & 0x7F) << shift;
      if (bits >= 0x80) continue;
      if ((bits == 0 && shift > 0) || value > most) break;
      return value;
    }
    fail();
    return 0;
  }
  std::uint64_t fixed64() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 8) value |= std::uint64_t{byte()} << shift;
    return is_ok_ ? value : 0;
  }
  std::string_view text(std::size_t most_bytes) {
    const std::uint64_t n = varint(most_bytes);
    if (n > rest_.size()) fail();
    if (!is_ok_) return {};
    const std::string_view value = rest_.substr(0, n);
    rest_.remove_prefix(n);
    return value;
  }

 private:
  std::string_view rest_;
  bool is_ok_ = true;
};

}  // namespace stoker

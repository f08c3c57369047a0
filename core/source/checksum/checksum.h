#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

struct evp_md_ctx_st;

namespace stoker {

/// The checksum that a store gives for a whole object, beside that of the bytes so far. Move-only, not thread-safe.
class Checksum {
 public:
  /// Cheapest first.
  enum class Kind : std::uint8_t { kCrc64Nvme, kCrc32c, kCrc32, kSha256, kSha1 };

  /// @param expected  Base64, as stores write it.
  /// @return nothing if it cannot be one of this kind for a whole object, such as one made of parts ("...-3").
  static std::optional<Checksum> expect(Kind kind, std::string_view expected);

  void update(std::span<const std::byte> bytes);
  /// Of the bytes so far, in base64.
  std::string computed() const;
  const std::string& expected() const { return expected_; }
  /// "CRC32C"
  const char* name() const;

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };
  Kind kind_ = Kind::kCrc32;
  std::string expected_;
  std::uint64_t crc_ = 0;
  std::unique_ptr<evp_md_ctx_st, Free> digest_;  // of the SHAs
};

}  // namespace stoker

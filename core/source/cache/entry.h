#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace stoker {

/// What an object is kept under: a hash of where it comes from, so that nothing of a URL, which may hold a signature,
/// is on disk.
struct CacheKey {
  std::string hex;          ///< SHA-256, 64 digits
  std::uint64_t place = 0;  ///< its first 64 bits: uniform over all objects, the same on every node

  /// @param store  What tells stores apart that know the same URL: the endpoint of S3; may be empty.
  static CacheKey of(std::string_view store, std::string_view url);
};

/// The file of one kept object, in this order and byte for byte:
///   magic (8), size of the tag (4), size of the object (8), key (64), checksum (32), tag, object.
/// Integers are little-endian; the checksum is 128-bit XXH3 of all the rest, as digits.
struct CacheEntry {
  static constexpr std::size_t kFixedBytes = 8 + 4 + 8 + 64 + 32;
  static constexpr std::size_t kMaxTagBytes = 1024;
  static constexpr std::size_t kMaxHeadBytes = kFixedBytes + kMaxTagBytes;

  std::uint64_t object_bytes = 0;
  std::string etag;
  std::string checksum;

  std::size_t head_bytes() const { return kFixedBytes + etag.size(); }
};

/// What stands before the object in its file. `etag` has at most kMaxTagBytes.
std::string entry_head(const CacheKey& key, std::string_view etag, std::span<const std::byte> object);

/// Reads a head from the front of a file. Foreign bytes: nothing is allocated but the tag.
/// @param front       The first kMaxHeadBytes, or the whole file if it is shorter.
/// @param file_bytes  Of the whole file.
/// @return false if it is no head of this object's in a file of this size.
bool read_entry_head(std::string_view front, std::uint64_t file_bytes, const CacheKey& key, CacheEntry& entry);

/// Whether the object and its head are the bytes that were written.
bool is_entry_sound(const CacheEntry& entry, const CacheKey& key, std::span<const std::byte> object);

}  // namespace stoker

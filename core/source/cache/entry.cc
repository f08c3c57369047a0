#include "source/cache/entry.h"

#include <charconv>

#include <fmt/format.h>

#include "base/hash.h"

namespace stoker {
namespace {

constexpr std::string_view kMagic = "STKOBJ1\n";
constexpr std::size_t kKeyAt = 8 + 4 + 8;
constexpr std::size_t kChecksumAt = kKeyAt + 64;

template <typename T>
void append_little_endian(std::string& to, T value) {
  for (std::size_t i = 0; i < sizeof value; ++i) to += static_cast<char>((value >> (8 * i)) & 0xFF);
}

std::uint64_t little_endian(std::string_view bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

// All of a head that stands before its checksum.
std::string start_of_head(const CacheKey& key, std::string_view etag, std::uint64_t object_bytes) {
  std::string head(kMagic);
  append_little_endian(head, static_cast<std::uint32_t>(etag.size()));
  append_little_endian(head, object_bytes);
  return head + key.hex;
}

std::string checksum_of(std::string_view start, std::string_view etag, std::span<const std::byte> object) {
  Digest digest;
  digest.add(start.data(), start.size());
  digest.add(etag.data(), etag.size());
  digest.add(object.data(), object.size());
  return digest.hex();
}

}  // namespace

CacheKey CacheKey::of(std::string_view store, std::string_view url) {
  CacheKey key;
  key.hex = sha256_hex(fmt::format("{}\n{}", store, url));
  std::from_chars(key.hex.data(), key.hex.data() + 16, key.place, 16);
  return key;
}

std::string entry_head(const CacheKey& key, std::string_view etag, std::span<const std::byte> object) {
  std::string head = start_of_head(key, etag, object.size());
  head += checksum_of(head, etag, object);
  head += etag;
  return head;
}

bool read_entry_head(std::string_view front, std::uint64_t file_bytes, const CacheKey& key, CacheEntry& entry) {
  if (front.size() < CacheEntry::kFixedBytes || !front.starts_with(kMagic)) return false;
  const std::uint64_t n_tag = little_endian(front.substr(kMagic.size(), 4));
  if (n_tag > CacheEntry::kMaxTagBytes || n_tag > front.size() - CacheEntry::kFixedBytes) return false;
  entry.object_bytes = little_endian(front.substr(kMagic.size() + 4, 8));
  entry.etag = front.substr(CacheEntry::kFixedBytes, n_tag);
  entry.checksum = front.substr(kChecksumAt, 32);
  // Subtracted, not added: a damaged size may be near 2^64.
  return front.substr(kKeyAt, 64) == key.hex && file_bytes >= entry.head_bytes() &&
         file_bytes - entry.head_bytes() == entry.object_bytes;
}

bool is_entry_sound(const CacheEntry& entry, const CacheKey& key, std::span<const std::byte> object) {
  return entry.checksum == checksum_of(start_of_head(key, entry.etag, object.size()), entry.etag, object);
}

}  // namespace stoker

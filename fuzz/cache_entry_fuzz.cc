// A file of the disk cache: what is accepted is byte for byte what would have been written for that object.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>

#include "source/cache/entry.h"

namespace {

void require(bool claim) {
  if (!claim) std::abort();
}

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  static const stoker::CacheKey key = stoker::CacheKey::of("http://store", "s3://bucket/key");

  const std::string_view front = input.substr(0, stoker::CacheEntry::kMaxHeadBytes);
  stoker::CacheEntry entry;
  if (stoker::read_entry_head(front, size, key, entry)) {
    require(entry.head_bytes() + entry.object_bytes == size && entry.etag.size() <= stoker::CacheEntry::kMaxTagBytes);
    const std::string_view object = input.substr(entry.head_bytes());
    if (stoker::is_entry_sound(entry, key, bytes_of(object))) {
      require(std::string(input.substr(0, entry.head_bytes())) ==
              stoker::entry_head(key, entry.etag, bytes_of(object)));
    }
  }

  // Any object under any tag comes back, and no other file of its length does: one byte of it is changed.
  if (size < 2) return 0;
  const std::string_view etag = input.substr(1, data[0]);
  const std::string_view object = input.substr(1 + etag.size());
  std::string file = stoker::entry_head(key, etag, bytes_of(object)) + std::string(object);
  const auto is_taken = [&] {
    stoker::CacheEntry again;
    return stoker::read_entry_head(std::string_view(file).substr(0, stoker::CacheEntry::kMaxHeadBytes), file.size(),
                                   key, again) &&
           stoker::is_entry_sound(again, key, bytes_of(std::string_view(file).substr(again.head_bytes())));
  };
  require(is_taken());
  char& changed = file[(data[0] * std::size_t{257} + data[1]) % file.size()];
  changed = static_cast<char>(changed ^ (1 << (data[1] % 8)));
  require(!is_taken());
  return 0;
}

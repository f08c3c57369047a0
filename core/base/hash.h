#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace stoker {

/// SHA-256 as 64 lower-case hexadecimal digits: for what must be compared with other tools' hashes.
std::string sha256_hex(std::string_view bytes);

/// 64-bit XXH3: checksums of short pieces. The same on every machine. Not for anything adversarial.
std::uint64_t hash64(std::string_view bytes);

/// 128 bits that stand for something longer; ordered, so that files can be sorted by it.
struct Hash128 {
  std::uint64_t high = 0, low = 0;
  auto operator<=>(const Hash128&) const = default;
};
/// 128-bit XXH3, as Digest's.
Hash128 hash128(std::string_view bytes);

/// Streaming 128-bit XXH3: digests of batches and plans, keys of index files. Not for anything adversarial.
class Digest {
 public:
  Digest();
  ~Digest();
  Digest(Digest&&) noexcept;
  Digest& operator=(Digest&&) noexcept;

  void add(const void* data, std::size_t n_bytes);
  void add(std::string_view text) {  ///< With its length, so that "a","bc" differs from "ab","c".
    add_int(static_cast<std::int64_t>(text.size()));
    add(text.data(), text.size());
  }
  void add_int(std::int64_t value) { add(&value, sizeof value); }
  /// 32 lower-case hexadecimal digits of what was added so far.
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace stoker

template <>
struct std::hash<stoker::Hash128> {
  std::size_t operator()(const stoker::Hash128& key) const noexcept { return key.low; }
};

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

namespace stoker {

/// 64-bit XXH3 under a key: for sorting contents into sets, the same on every machine and for ever. Not for anything
/// adversarial. The seed of XXH3 is the XXH3 of the key.
class KeyedHash {
 public:
  explicit KeyedHash(std::string_view key);
  ~KeyedHash();
  KeyedHash(KeyedHash&&) noexcept;
  KeyedHash& operator=(KeyedHash&&) noexcept;

  /// Of one text. Threads: any.
  std::uint64_t of(std::string_view bytes) const;

  // Of a text that comes in pieces: begin(), add() as often as needed, end(). Equal to of() of the whole.
  void begin();
  void add(std::string_view bytes);
  std::uint64_t end() const;

 private:
  struct State;
  std::uint64_t seed_;
  std::unique_ptr<State> state_;
};

}  // namespace stoker

#pragma once

#include <cstdint>

namespace stoker {

/// One step of SplitMix64: a bijection on 64-bit integers with good avalanche. Source: Steele, Lea, Flood 2014.
constexpr std::uint64_t mix64(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

/// SplitMix64: a small counter-based generator. Randomness comes from (seed, index), never from globals.
class Rng {
 public:
  explicit constexpr Rng(std::uint64_t seed) : state_(seed) {}
  constexpr std::uint64_t next() { return mix64(state_ += 0x9E3779B97F4A7C15ULL); }
  /// Uniform in [0, 1).
  constexpr double uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }

 private:
  std::uint64_t state_;
};

}  // namespace stoker

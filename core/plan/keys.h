#pragma once

#include <cstdint>
#include <string_view>

#include "base/rng.h"

namespace stoker {

inline constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15ULL;

/// Keys of permutations: what a key depends on is absorbed, one after another, into a state that begins as 0.
constexpr std::uint64_t absorb(std::uint64_t state, std::uint64_t word) { return mix64((state ^ word) + kGolden); }

constexpr std::uint64_t absorb(std::uint64_t state, std::string_view text) {
  state = absorb(state, text.size());
  for (const char c : text) state = absorb(state, static_cast<unsigned char>(c));
  return state;
}

}  // namespace stoker

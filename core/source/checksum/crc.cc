#include "source/checksum/crc.h"

#include <array>

// As for the pixel kernels (media/simd_targets.h): blocks of 16 bytes, and the emulated target as the fallback.
#define HWY_BROKEN_EMU128 0
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "source/checksum/crc.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace stoker::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Folds whole blocks of 16 bytes into the first: 128 bits that are congruent to all of them, as polynomials in which
// the lowest bit has the highest degree. `by_four` and `by_one` are the factors that move a block's two halves over 512
// and over 128 bits. Source: Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction",
// Intel, 2009.
void FoldBlocks(std::uint64_t state, const std::uint64_t* by_four, const std::uint64_t* by_one, const std::byte* blocks,
                std::size_t n_blocks, std::uint64_t* folded) {
  const hn::Full128<std::uint64_t> d;
  const hn::Repartition<std::uint8_t, decltype(d)> d8;
  const auto load = [&](std::size_t i) {
    return hn::BitCast(d, hn::LoadU(d8, reinterpret_cast<const std::uint8_t*>(blocks) + 16 * i));
  };
  const auto move = [](auto block, auto factors) {
    return hn::Xor(hn::CLMulLower(block, factors), hn::CLMulUpper(block, factors));
  };
  const auto over_128 = hn::LoadU(d, by_one);
  const std::uint64_t first[2] = {state, 0};
  auto sum = hn::Xor(load(0), hn::LoadU(d, first));
  std::size_t i = 1;
  if (n_blocks >= 8) {
    const auto over_512 = hn::LoadU(d, by_four);
    auto b = load(1), c = load(2), e = load(3);
    for (i = 4; i + 4 <= n_blocks; i += 4) {
      sum = hn::Xor(move(sum, over_512), load(i));
      b = hn::Xor(move(b, over_512), load(i + 1));
      c = hn::Xor(move(c, over_512), load(i + 2));
      e = hn::Xor(move(e, over_512), load(i + 3));
    }
    sum = hn::Xor(move(sum, over_128), b);
    sum = hn::Xor(move(sum, over_128), c);
    sum = hn::Xor(move(sum, over_128), e);
  }
  for (; i < n_blocks; ++i) sum = hn::Xor(move(sum, over_128), load(i));
  hn::StoreU(sum, d, folded);
}

}  // namespace stoker::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace stoker {
namespace {

HWY_EXPORT(FoldBlocks);

struct Constants {
  std::array<std::uint64_t, 256> table{};
  std::array<std::uint64_t, 2> by_four{}, by_one{};
  std::uint64_t ones = 0;
};

constexpr std::uint64_t times_x(std::uint64_t value, std::uint64_t polynomial) {
  return (value >> 1) ^ ((value & 1) != 0 ? polynomial : 0);
}

// x^n modulo the polynomial, as the upper bits of 64.
constexpr std::uint64_t power_of_x(int n, std::uint64_t polynomial, int width) {
  std::uint64_t value = std::uint64_t{1} << (width - 1);
  for (int i = 0; i < n; ++i) value = times_x(value, polynomial);
  return value << (64 - width);
}

// @param polynomial  Reflected, without its highest term.
constexpr Constants constants_of(std::uint64_t polynomial, int width) {
  Constants c;
  for (std::uint64_t i = 0; i < 256; ++i) {
    std::uint64_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = times_x(value, polynomial);
    c.table[i] = value;
  }
  // One less than the distance: the product of two reflected halves comes out shifted by one.
  c.by_four = {power_of_x(512 + 64 - 1, polynomial, width), power_of_x(512 - 1, polynomial, width)};
  c.by_one = {power_of_x(128 + 64 - 1, polynomial, width), power_of_x(128 - 1, polynomial, width)};
  c.ones = ~std::uint64_t{0} >> (64 - width);
  return c;
}

constexpr std::array kConstants = {constants_of(0xEDB88320, 32), constants_of(0x82F63B78, 32),
                                   constants_of(0x9A6C9329AC4BC9B5, 64)};

}  // namespace

std::uint64_t crc_of(Crc kind, std::uint64_t so_far, std::span<const std::byte> bytes) {
  const Constants& c = kConstants[static_cast<std::size_t>(kind)];
  std::uint64_t state = so_far ^ c.ones;
  const auto take = [&](std::byte byte) {
    state = (state >> 8) ^ c.table[(state ^ static_cast<std::uint64_t>(byte)) & 0xFF];
  };
  if (const std::size_t n_blocks = bytes.size() / 16; n_blocks >= 4) {
    std::array<std::uint64_t, 2> folded{};
    HWY_DYNAMIC_DISPATCH(FoldBlocks)
    (state, c.by_four.data(), c.by_one.data(), bytes.data(), n_blocks, folded.data());
    state = 0;
    for (const std::uint64_t half : folded) {
      for (int i = 0; i < 8; ++i) take(static_cast<std::byte>(half >> (8 * i) & 0xFF));
    }
    bytes = bytes.subspan(n_blocks * 16);
  }
  for (const std::byte byte : bytes) take(byte);
  return state ^ c.ones;
}

}  // namespace stoker
#endif  // HWY_ONCE

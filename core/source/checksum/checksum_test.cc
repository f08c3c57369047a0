#include "source/checksum/checksum.h"

#include <zlib.h>

#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include "base/rng.h"
#include "source/checksum/crc.h"

namespace stoker {
namespace {

using Kind = Checksum::Kind;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// Bit by bit, from the definition.
std::uint64_t slow_crc(std::uint64_t polynomial, int width, std::span<const std::byte> bytes) {
  const std::uint64_t ones = ~std::uint64_t{0} >> (64 - width);
  std::uint64_t state = ones;
  for (const std::byte byte : bytes) {
    state ^= static_cast<std::uint64_t>(byte);
    for (int i = 0; i < 8; ++i) state = (state >> 1) ^ ((state & 1) != 0 ? polynomial : 0);
  }
  return state ^ ones;
}

TEST(Crc, CheckValuesOfTheCatalogue) {
  const auto digits = bytes_of("123456789");
  EXPECT_EQ(crc_of(Crc::k32, 0, digits), 0xCBF43926U);
  EXPECT_EQ(crc_of(Crc::k32c, 0, digits), 0xE3069283U);
  EXPECT_EQ(crc_of(Crc::k64Nvme, 0, digits), 0xAE8B14860A799888U);
  EXPECT_EQ(crc_of(Crc::k64Nvme, 0, {}), 0U);
}

// Restores the choice of what this CPU runs.
struct OnlyTarget {
  explicit OnlyTarget(std::int64_t target) { set(target); }
  ~OnlyTarget() { set(0); }
  static void set(std::int64_t target) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().DeInit();
  }
};

void expect_the_definition() {
  Rng rng(5);
  std::vector<std::byte> bytes(1100);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(rng.next() & 0xFF);
  for (std::size_t n = 0; n <= bytes.size(); n += n < 300 ? 1 : 37) {
    const std::span<const std::byte> whole(bytes.data() + n % 7, n - std::min<std::size_t>(n, n % 7));
    const std::size_t cut = whole.empty() ? 0 : rng.next() % whole.size();
    const auto in_pieces = [&](Crc kind) {
      return crc_of(kind, crc_of(kind, 0, whole.first(cut)), whole.subspan(cut));
    };
    EXPECT_EQ(in_pieces(Crc::k32), slow_crc(0xEDB88320, 32, whole)) << n;
    EXPECT_EQ(in_pieces(Crc::k32c), slow_crc(0x82F63B78, 32, whole)) << n;
    EXPECT_EQ(in_pieces(Crc::k64Nvme), slow_crc(0x9A6C9329AC4BC9B5, 64, whole)) << n;
    EXPECT_EQ(crc_of(Crc::k32, 0, whole),
              crc32_z(0, reinterpret_cast<const unsigned char*>(whole.data()), whole.size()));
  }
}

TEST(Crc, EveryLengthInAnyPiecesEqualsTheDefinitionOnEveryTarget) {
  int n_targets = 0;
  for (std::int64_t rest = hwy::SupportedTargets(); rest != 0; rest &= rest - 1) {
    const std::int64_t target = rest & -rest;
    if (target == HWY_SCALAR) continue;  // its place is taken by the emulated target
    const OnlyTarget only(target);
    SCOPED_TRACE(hwy::TargetName(target));
    expect_the_definition();
    ++n_targets;
  }
  EXPECT_GT(n_targets, 0);
}

TEST(Checksum, IsWrittenAsStoresWriteIt) {
  struct Case {
    Kind kind;
    const char* of_digits;  // base64 of the well-known values for "123456789"
  };
  for (const Case& c : {Case{Kind::kCrc32, "y/Q5Jg=="}, Case{Kind::kCrc32c, "4waSgw=="},
                        Case{Kind::kCrc64Nvme, "rosUhgp5mIg="}, Case{Kind::kSha1, "98O8HYCOBHMq32eZZczDTKeuNEE="},
                        Case{Kind::kSha256, "FeKw08M4keuw8e9gnsQZQgwg4yDOlMZfvIwzEkSOsiU="}}) {
    auto checksum = Checksum::expect(c.kind, c.of_digits);
    ASSERT_TRUE(checksum) << c.of_digits;
    checksum->update(bytes_of("1234"));
    EXPECT_NE(checksum->computed(), checksum->expected());
    checksum->update(bytes_of("56789"));
    EXPECT_EQ(checksum->computed(), checksum->expected()) << checksum->name();
  }
}

TEST(Checksum, WhatIsNoneOfAWholeObjectIsLeftAlone) {
  EXPECT_FALSE(Checksum::expect(Kind::kCrc32, "y/Q5Jg==-3"));
  EXPECT_FALSE(Checksum::expect(Kind::kCrc32, ""));
  EXPECT_FALSE(Checksum::expect(Kind::kCrc32, "y/Q5J!=="));
  EXPECT_FALSE(Checksum::expect(Kind::kCrc64Nvme, "y/Q5Jg=="));
  EXPECT_FALSE(Checksum::expect(Kind::kSha256, "98O8HYCOBHMq32eZZczDTKeuNEE="));
}

}  // namespace
}  // namespace stoker

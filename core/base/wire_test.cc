#include "base/wire.h"

#include <gtest/gtest.h>

namespace stoker {
namespace {

TEST(Wire, GivesBackWhatWasWrittenAndNothingBeyondIt) {
  std::string bytes;
  WireWriter to(bytes);
  to.byte(7);
  for (int bit = 0; bit < 64; ++bit) to.varint((std::uint64_t{1} << bit) - 1);
  to.varint(UINT64_MAX);
  to.fixed64(0x0123456789ABCDEF);
  to.text("what");
  for (std::size_t kept = 0; kept <= bytes.size(); ++kept) {
    WireReader from(std::string_view(bytes).substr(0, kept));
    bool is_equal = from.byte() == 7;
    for (int bit = 0; bit < 64; ++bit) is_equal &= from.varint() == (std::uint64_t{1} << bit) - 1;
    is_equal &= from.varint() == UINT64_MAX;
    is_equal &= from.fixed64() == 0x0123456789ABCDEF;
    is_equal &= from.text(4) == "what";
    EXPECT_EQ(from.is_at_end(), kept == bytes.size());
    EXPECT_EQ(is_equal, kept == bytes.size());
  }
}

TEST(Wire, TakesOneSpellingOfANumberAndNoneBeyondItsLimit) {
  const auto is_taken = [](std::string_view bytes, std::uint64_t most = UINT64_MAX) {
    WireReader from(bytes);
    from.varint(most);
    return from.is_at_end();
  };
  EXPECT_TRUE(is_taken("\x05", 5));
  EXPECT_FALSE(is_taken("\x05", 4));
  EXPECT_FALSE(is_taken(std::string_view("\x85\x00", 2)));                 // 5 in two bytes
  EXPECT_FALSE(is_taken("\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x02"));      // 65 bits
  EXPECT_FALSE(is_taken("\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01"));  // 11 bytes
  EXPECT_TRUE(is_taken("\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01"));
  WireReader text("\x05what");
  EXPECT_EQ(text.text(100), "");
  EXPECT_FALSE(text.ok());
}

}  // namespace
}  // namespace stoker

#include "source/prefixes.h"

#include <gtest/gtest.h>

namespace stoker {
namespace {

std::string prefix_of(const std::string& url) {
  Prefixes prefixes;
  auto at = parse_location(url);
  EXPECT_TRUE(at.ok()) << url;
  return prefixes.name(prefixes.number_of(*at));
}

TEST(Prefixes, AreBucketOrHostAndTwoFolders) {
  EXPECT_EQ(prefix_of("s3://b/a/b/c/d.jpg"), "s3://b/a/b/");
  EXPECT_EQ(prefix_of("s3://b/a/b/"), "s3://b/a/b/");
  EXPECT_EQ(prefix_of("s3://b/a//c.jpg"), "s3://b/a//");
  EXPECT_EQ(prefix_of("s3://b/d.jpg"), "s3://b/");
  EXPECT_EQ(prefix_of("https://user:password@h.org:81/x/y/z/1.jpg?signature=/secret/"), "https://h.org:81/x/y/");
  EXPECT_EQ(prefix_of("http://h.org"), "http://h.org/");
  EXPECT_EQ(prefix_of("http://h.org?q=/a/b"), "http://h.org/");
  EXPECT_EQ(prefix_of("/a/b/c"), "");
}

TEST(Prefixes, HaveStableNumbersAndNoEnd) {
  Prefixes prefixes;
  const auto number_of = [&](int i) {
    return prefixes.number_of(*parse_location("s3://b/" + std::to_string(i) + "/x"));
  };
  for (int i = 0; i < Prefixes::kMost; ++i) EXPECT_EQ(number_of(i), i);
  for (int i = 0; i < 10'000; ++i) {
    const int number = number_of(i);
    ASSERT_LT(number, Prefixes::kMost);
    ASSERT_EQ(number, number_of(i));
  }
}

}  // namespace
}  // namespace stoker

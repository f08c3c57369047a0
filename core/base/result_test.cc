#include "base/result.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace stoker {
namespace {

Result<int> half(int n) {
  if (n % 2 != 0) return Status(Reason::kImgTruncated, "odd");
  return n / 2;
}

Result<int> quarter(int n) {
  STOKER_TRY(const int h, half(n));
  return half(h);
}

TEST(Result, TryReturnsTheFirstFailure) {
  EXPECT_EQ(quarter(8).value(), 2);
  EXPECT_EQ(quarter(7).status().reason(), Reason::kImgTruncated);
  EXPECT_EQ(quarter(6).status().code(), Code::kBadSample);
}

TEST(Status, WithNamesTheObjectInFront) {
  Status s = Status(Reason::kImgTruncated, "truncated at byte 812").with("decode s3://b/k.png");
  EXPECT_EQ(s.to_string(), "IMG_TRUNCATED: decode s3://b/k.png: truncated at byte 812");
  EXPECT_TRUE(Status().with("x").ok());
}

TEST(Reasons, NamesAreUniqueAndRoundTrip) {
  std::set<std::string_view> names;
  for (int i = 0; i < kNumReasons; ++i) {
    const auto reason = static_cast<Reason>(i);
    EXPECT_TRUE(names.insert(name_of(reason)).second) << name_of(reason);
    EXPECT_EQ(reason_named(name_of(reason)), reason);
    EXPECT_EQ(action_of(reason) == Code::kOk, reason == Reason::kNone);
    EXPECT_FALSE(text_of(reason).empty());
  }
  EXPECT_FALSE(reason_named("NO_SUCH_REASON").has_value());
}

}  // namespace
}  // namespace stoker

#include "source/url.h"

#include <gtest/gtest.h>

namespace stoker {
namespace {

TEST(Url, EncodesOnce) { EXPECT_EQ(percent_encode("a b+c%2B/d~", true), "a%20b%2Bc%252B/d~"); }

}  // namespace
}  // namespace stoker

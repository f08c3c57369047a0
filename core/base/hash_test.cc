#include "base/hash.h"

#include <gtest/gtest.h>

namespace stoker {
namespace {

TEST(Sha256, IsTheStandardsExample) {  // FIPS 180-4, "abc"
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Digest, DependsOnContentAndBorders) {
  Digest a, b, c;
  a.add("ab");
  a.add("c");
  b.add("ab");
  b.add("c");
  c.add("a");
  c.add("bc");
  EXPECT_EQ(a.hex(), b.hex());
  EXPECT_NE(a.hex(), c.hex());
  EXPECT_EQ(a.hex().size(), 32U);
}

}  // namespace
}  // namespace stoker

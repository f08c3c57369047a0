#include "source/url.h"

#include <gtest/gtest.h>

namespace stoker {
namespace {

TEST(Url, EncodesEveryByteOnceAndBack) {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  const std::string encoded = percent_encode(all, false);
  EXPECT_EQ(encoded.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~%"),
            std::string::npos);
  EXPECT_EQ(percent_decode(encoded), all);
  EXPECT_EQ(percent_encode("a b+c%2B/d~", true), "a%20b%2Bc%252B/d~");
  EXPECT_EQ(percent_decode("100% %4 %zz %41"), "100% %4 %zz A");
}

// The tables of references are in tests/test_source_url.py.
TEST(Url, WhatResolvesAlsoParses) {
  for (const char* reference : {"a.png", "/x", "s3://b/k", "s3://b//k", "file:///a%20b", "https://h/x", "mem://m"}) {
    auto resolved = resolve_media(reference, "/root");
    ASSERT_TRUE(resolved.ok()) << reference;
    EXPECT_TRUE(parse_location(*resolved).ok()) << *resolved;
  }
}

TEST(Url, MessagesHideWhatAUrlMayCarry) {
  const auto shown = [](const char* url) { return parse_location(url)->shown(); };
  EXPECT_EQ(shown("https://user:pass@h.example/p@th/x?token=1#f"), "\"https://h.example/p@th/x\"");
  EXPECT_EQ(shown("https://h.example?token=1"), "\"https://h.example\"");
  EXPECT_EQ(shown("s3://b/a?b#c"), "\"s3://b/a?b#c\"");
  EXPECT_EQ(shown("/a\nb"), "\"/a?b\"");
  EXPECT_EQ(shown_media("https://user:pass@h.example/x.png?token=1"), "https://h.example/x.png?...");
  EXPECT_EQ(shown_media("ftp://user@h/x?token=1"), "ftp://h/x?...");
  EXPECT_EQ(shown_media("s3://b/a?b@c"), "s3://b/a?b@c") << "the key";
  EXPECT_EQ(shown_media("a?b.png"), "a?b.png");
  EXPECT_EQ(resolve_media("ftp://user:pass@h/x?token=1", "/root").status().message().substr(0, 11), "\"ftp://h/x\"");
  EXPECT_LT(shown(("/" + std::string(10'000, 'x')).c_str()).size(), 500U);
}

}  // namespace
}  // namespace stoker

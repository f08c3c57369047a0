#include "source/http/body_unpacker.h"

#include <zlib.h>

#include <optional>

#include <gtest/gtest.h>

#include "source/testing/fetch_fixture.h"

namespace stoker {
namespace {

using testing::packed;

// What comes out if it is fed in pieces; nothing if it is damaged.
std::optional<std::string> unpacked(Coding coding, const std::string& body, std::size_t piece) {
  BodyUnpacker unpacker(coding);
  std::string out;
  const auto sink = [&](std::string_view bytes) {
    EXPECT_LE(bytes.size(), std::max<std::size_t>(64 * 1024, body.size()));
    out += bytes;
    return true;
  };
  for (std::size_t at = 0; at < body.size(); at += piece) {
    if (!unpacker.feed(std::string_view(body).substr(at, piece), sink)) return std::nullopt;
  }
  if (!unpacker.finish(sink)) return std::nullopt;
  return out;
}

TEST(BodyUnpacker, GivesTheSameInPiecesOfAnySize) {
  std::string text;
  for (int i = 0; i < 40'000; ++i) text += std::to_string(i * i % 1000);
  for (const std::size_t piece : {std::size_t{1}, std::size_t{3}, std::size_t{4096}, text.size()}) {
    EXPECT_EQ(unpacked(Coding::kGzip, packed(text, MAX_WBITS + 16), piece), text);
    EXPECT_EQ(unpacked(Coding::kGzip, packed(text, MAX_WBITS + 16) + packed("more", MAX_WBITS + 16), piece),
              text + "more");
    EXPECT_EQ(unpacked(Coding::kGzip, packed(text, MAX_WBITS + 16) + std::string(512, '\0'), piece), text);
    EXPECT_EQ(unpacked(Coding::kDeflate, packed(text, MAX_WBITS), piece), text);
    EXPECT_EQ(unpacked(Coding::kDeflate, packed(text, -MAX_WBITS), piece), text);
    EXPECT_EQ(unpacked(Coding::kGzip, "\xFF\xD8 a JPEG that somebody labelled gzip", piece),
              "\xFF\xD8 a JPEG that somebody labelled gzip");
    EXPECT_EQ(unpacked(Coding::kGzip, "x", piece), "x");
    EXPECT_EQ(unpacked(Coding::kGzip, "", piece), "");
  }
}

TEST(BodyUnpacker, WhatIsDamagedOrEndsEarlyIsNoticed) {
  const std::string body = packed(std::string(3000, 'a') + "end", MAX_WBITS + 16);
  for (std::size_t n = 2; n < body.size(); ++n) EXPECT_FALSE(unpacked(Coding::kGzip, body.substr(0, n), 7)) << n;
  std::string damaged = body;
  damaged[damaged.size() - 6] ^= 1;  // of its CRC
  EXPECT_FALSE(unpacked(Coding::kGzip, damaged, 7));
}

TEST(Coding, IsReadAsServersWriteIt) {
  EXPECT_EQ(coding_of(""), Coding::kNone);
  EXPECT_EQ(coding_of("identity"), Coding::kNone);
  EXPECT_EQ(coding_of("aws-chunked"), Coding::kNone);
  EXPECT_EQ(coding_of("GZip"), Coding::kGzip);
  EXPECT_EQ(coding_of("aws-chunked, x-gzip"), Coding::kGzip);
  EXPECT_EQ(coding_of("deflate"), Coding::kDeflate);
  EXPECT_EQ(coding_of("br"), Coding::kOther);
  EXPECT_EQ(coding_of("gzip,gzip"), Coding::kOther);
}

}  // namespace
}  // namespace stoker

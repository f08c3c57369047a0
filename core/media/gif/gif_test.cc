#include "media/gif/gif.h"

#include <gtest/gtest.h>

#include "media/conformance.h"
#include "media/encode_for_test.h"
#include "media/gif/lzw.h"

namespace stoker::testing {

DecodeInto gif_decoder() { return decoder_of<GifDecoder>(); }

INSTANTIATE_TEST_SUITE_P(Gif, DecoderConformance,
                         ::testing::Values(DecoderCase{"plain", gif_decoder, test_picture("plain.gif"), 2},
                                           DecoderCase{"interlaced", gif_decoder, test_picture("interlaced.gif"), 2},
                                           DecoderCase{"placed", gif_decoder, test_picture("placed.gif"), 2}),
                         [](const auto& param) { return param.param.name; });

namespace {

std::vector<std::byte> bytes_of(std::initializer_list<int> values) {
  std::vector<std::byte> bytes;
  for (const int v : values) bytes.push_back(static_cast<std::byte>(v));
  return bytes;
}

/// Codes of 3 bits: clear 4, then 1, then 6, the string that this code itself makes: 1 1.
TEST(GifLzw, TakesTheCodeThatIsNotYetThere) {
  GifLzw lzw;
  const auto blocks = bytes_of({2, 4 | 1 << 3 | (6 << 6 & 0xFF), 6 >> 2 | 5 << 1, 0});
  ASSERT_TRUE(lzw.start(blocks, 2).ok());
  std::array<std::uint8_t, 3> pixels{};
  ASSERT_TRUE(lzw.read(pixels.data(), 3).ok());
  EXPECT_EQ(pixels, (std::array<std::uint8_t, 3>{1, 1, 1}));
  std::uint8_t more = 0;
  EXPECT_EQ(lzw.read(&more, 1).reason(), Reason::kImgCorrupt) << "the end code";
}

TEST(GifLzw, RefusesCodesFromNowhere) {
  GifLzw lzw;
  std::array<std::uint8_t, 3> pixels{};
  const auto blocks = bytes_of({2, 4 | 1 << 3 | (7 << 6 & 0xFF), 7 >> 2, 0});
  ASSERT_TRUE(lzw.start(blocks, 2).ok());
  EXPECT_EQ(lzw.read(pixels.data(), 3).reason(), Reason::kImgCorrupt);
  EXPECT_EQ(lzw.start(blocks, 0).reason(), Reason::kImgCorrupt);
  EXPECT_EQ(lzw.start(blocks, 12).reason(), Reason::kImgCorrupt);
}

TEST(Gif, InterlacedFramesAnnounceTheirMemory) {
  const auto plain = test_picture("plain.gif");
  const auto interlaced = test_picture("interlaced.gif");
  EXPECT_EQ(probe(plain, plain.size(), {})->info->scratch_bytes, 0U);
  EXPECT_EQ(probe(interlaced, interlaced.size(), {})->info->scratch_bytes, 21U * 17);
}

}  // namespace
}  // namespace stoker::testing

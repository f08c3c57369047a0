#include "media/png/png.h"

#include <gtest/gtest.h>

#include <memory>

#include "media/conformance.h"
#include "media/encode_for_test.h"

namespace stoker::testing {

DecodeInto png_decoder() { return decoder_of<PngDecoder>(); }

INSTANTIATE_TEST_SUITE_P(Png, DecoderConformance,
                         ::testing::Values(DecoderCase{"plain", png_decoder, encode_png(picture(31, 40, 1), false)},
                                           DecoderCase{"interlaced", png_decoder,
                                                       encode_png(picture(32, 41, 2), true)}),
                         [](const auto& param) { return param.param.name; });

namespace {

TEST(Png, GivesBackWhatWasEncoded) {
  for (const bool is_interlaced : {false, true}) {
    for (const auto& [height, width] : {std::pair{1, 1}, {1, 9}, {2, 3}, {17, 70}, {64, 64}}) {
      const RgbImage image = picture(height, width, 3);
      const auto decoded = decode_rgb(encode_png(image, is_interlaced), {});
      ASSERT_TRUE(decoded.ok()) << decoded.status().to_string();
      EXPECT_EQ(decoded->pixels, image.pixels) << width << "x" << height;
    }
  }
}

TEST(Png, InterlacedPicturesAnnounceTheirMemory) {
  const auto plain = encode_png(picture(20, 30, 4), false);
  const auto interlaced = encode_png(picture(20, 30, 4), true);
  EXPECT_EQ(probe(plain, plain.size(), {})->info->scratch_bytes, 0U);
  EXPECT_EQ(probe(interlaced, interlaced.size(), {})->info->scratch_bytes, 20U * 30 * 3);
}

}  // namespace
}  // namespace stoker::testing

#include "media/bmp/bmp.h"

#include <gtest/gtest.h>

#include "media/conformance.h"
#include "media/encode_for_test.h"

namespace stoker::testing {

DecodeInto bmp_decoder() { return decoder_of<BmpDecoder>(); }

INSTANTIATE_TEST_SUITE_P(Bmp, DecoderConformance,
                         ::testing::Values(DecoderCase{"palette", bmp_decoder, test_picture("palette.bmp"), 1},
                                           DecoderCase{"two_colours", bmp_decoder, test_picture("two_colours.bmp"), 2},
                                           DecoderCase{"rgb", bmp_decoder, test_picture("rgb.bmp"), 1},
                                           DecoderCase{"bgra", bmp_decoder, test_picture("bgra.bmp")},
                                           DecoderCase{"rgb565", bmp_decoder, test_picture("565.bmp"), 2},
                                           DecoderCase{"rle8", bmp_decoder, test_picture("rle8.bmp")},
                                           DecoderCase{"rle4", bmp_decoder, test_picture("rle4.bmp")}),
                         [](const auto& param) { return param.param.name; });

namespace {

TEST(Bmp, TextThatBeginsWithBmIsText) {
  const std::string text = "BMW and other makers of cars and of motorcycles";
  const auto bytes = std::as_bytes(std::span(text));
  const auto found = probe(bytes, bytes.size(), {});
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.status().reason(), Reason::kImgNotAnImage);
}

TEST(Bmp, RunLengthPicturesAnnounceTheirMemory) {
  const auto file = test_picture("rle8.bmp");
  EXPECT_EQ(probe(file, file.size(), {})->info->scratch_bytes, 23U * 15);
}

TEST(Bmp, NamesWhatItDoesNotTake) {
  auto file = test_picture("565.bmp");
  file[54] = std::byte{1};  // red's mask
  EXPECT_EQ(probe(file, file.size(), {}).status().reason(), Reason::kImgUnsupported);
  file = test_picture("rgb.bmp");
  file[30] = std::byte{5};  // PNG inside
  EXPECT_NE(probe(file, file.size(), {}).status().message().find("compression 5"), std::string::npos);
}

}  // namespace
}  // namespace stoker::testing

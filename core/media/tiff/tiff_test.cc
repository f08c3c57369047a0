#include "media/tiff/tiff.h"

#include <gtest/gtest.h>

#include "media/conformance.h"
#include "media/encode_for_test.h"

namespace stoker::testing {

DecodeInto tiff_decoder() { return decoder_of<TiffDecoder>(); }

INSTANTIATE_TEST_SUITE_P(Tiff, DecoderConformance,
                         ::testing::Values(DecoderCase{"raw", tiff_decoder, test_picture("raw.tiff")},
                                           DecoderCase{"lzw", tiff_decoder, test_picture("lzw.tiff")},
                                           DecoderCase{"packbits", tiff_decoder, test_picture("packbits.tiff")},
                                           DecoderCase{"tiled", tiff_decoder, test_picture("tiled.tiff")}),
                         [](const auto& param) { return param.param.name; });

namespace {

TEST(Tiff, AnnouncesABandAndIsTurnedAlways) {
  const auto file = test_picture("tiled.tiff");
  const auto found = probe(file, file.size(), {});
  ASSERT_TRUE(found.ok() && found->info);
  EXPECT_TRUE(found->info->is_turned_always);
  EXPECT_EQ(found->info->scratch_bytes, 2U * 16 * 48 * 3);
}

}  // namespace
}  // namespace stoker::testing

#include "media/jpeg/jpeg.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "media/conformance.h"
#include "media/encode_for_test.h"
#include "media/jpeg/jpeg_header.h"

namespace stoker::testing {

DecodeInto jpeg_decoder() { return decoder_of<JpegDecoder>(); }

INSTANTIATE_TEST_SUITE_P(
    Jpeg, DecoderConformance,
    ::testing::Values(DecoderCase{"h2v2", jpeg_decoder, encode_jpeg(picture(67, 83, 1), {})},
                      DecoderCase{"h1v1", jpeg_decoder, encode_jpeg(picture(33, 40, 2), {.luma_h = 1, .luma_v = 1})},
                      DecoderCase{"progressive", jpeg_decoder,
                                  encode_jpeg(picture(50, 64, 3), {.is_progressive = true})},
                      DecoderCase{"restarts", jpeg_decoder, encode_jpeg(picture(50, 64, 3), {.restart_interval = 2})},
                      DecoderCase{"grey", jpeg_decoder,
                                  encode_jpeg(picture(31, 45, 4), {.luma_h = 1, .luma_v = 1, .is_grey = true})}),
    [](const auto& param) { return param.param.name; });

namespace {

/// Our upsampling and colour against the library's, at every edge that a block, an iMCU or a vector can have.
TEST(Jpeg, EqualsTheLibraryForEveryLayoutAndSize) {
  const std::vector<std::pair<int, int>> layouts = {{1, 1}, {2, 1}, {2, 2}, {1, 2}, {4, 1}};
  int n_compared = 0;
  for (const auto& [h, v] : layouts) {
    for (int height = 1; height <= 36; height += height < 20 ? 1 : 5) {
      for (const int width : {1, 2, 3, 4, 5, 6, 7, 8, 15, 16, 17, 31, 32, 33, 34, 63, 64, 65, 130}) {
        const JpegStyle style{.quality = 75 + (height + width) % 25,
                              .luma_h = h,
                              .luma_v = v,
                              .is_progressive = (height + width) % 7 == 0,
                              .restart_interval = (height + width) % 3};
        const auto file = encode_jpeg(picture(height, width, static_cast<unsigned>(height * 131 + width)), style);
        const auto ours = decode_rgb(file, {});
        ASSERT_TRUE(ours.ok()) << ours.status().to_string();
        ASSERT_EQ(ours->pixels, decode_jpeg_plainly(file).pixels) << h << "x" << v << " " << width << "x" << height;
        ++n_compared;
      }
    }
  }
  EXPECT_GT(n_compared, 2000);
}

/// Every chroma value meets the conversion: flat blocks of all (Cb, Cr) that RGB can make, and then some.
TEST(Jpeg, ColourConversionIsExactForAllChroma) {
  RgbImage image{256, 256, {}};
  for (int y = 0; y < 256; ++y) {
    for (int x = 0; x < 256; ++x) {
      image.pixels.push_back(static_cast<std::uint8_t>(x));
      image.pixels.push_back(static_cast<std::uint8_t>((x * 7 + y * 3) % 256));
      image.pixels.push_back(static_cast<std::uint8_t>(y));
    }
  }
  for (const int quality : {100, 60, 5}) {
    const auto file = encode_jpeg(image, {.quality = quality, .luma_h = 1, .luma_v = 1});
    EXPECT_EQ(decode_rgb(file, {})->pixels, decode_jpeg_plainly(file).pixels) << quality;
  }
}

TEST(Jpeg, ReadsOrientationAndSamplingFromTheHeader) {
  for (int orientation = 1; orientation <= 8; ++orientation) {
    const auto file =
        encode_jpeg(picture(20, 30, 5), {.is_progressive = orientation % 2 == 0, .orientation = orientation});
    const auto found = probe(file, file.size(), {});
    ASSERT_TRUE(found.ok() && found->info);
    EXPECT_EQ(found->info->orientation, orientation);
    EXPECT_EQ(found->info->upright_height_px(), orientation >= 5 ? 30 : 20);
    EXPECT_EQ(found->info->interlaced, orientation % 2 == 0);
    // 4:2:0: two MCUs of 16 x 16 across, two down, six blocks each
    EXPECT_EQ(found->info->scratch_bytes, orientation % 2 == 0 ? 4U * 6 * 64 * 2 : 0U);
  }
}

std::vector<std::byte> with_bytes_before_end(std::vector<std::byte> file, std::size_t n) {
  file.insert(file.end() - 2, n, std::byte{0});
  return file;
}

TEST(Jpeg, ToleratesAFewStrayBytesAndNoMore) {
  const auto clean = encode_jpeg(picture(40, 40, 6), {});
  EXPECT_EQ(decode_rgb(with_bytes_before_end(clean, 7), {})->pixels, decode_rgb(clean, {})->pixels);
  EXPECT_TRUE(decode_rgb(with_bytes_before_end(clean, 64), {}).ok());
  // Up to eight of them are in the codec's bit buffer already and not counted.
  EXPECT_EQ(decode_rgb(with_bytes_before_end(clean, 64 + 9), {}).status().reason(), Reason::kImgCorrupt);
}

TEST(Jpeg, RefusesAPictureWhoseDataEndsAtAMarker) {
  auto file = encode_jpeg(picture(96, 96, 7), {});
  file.resize(file.size() / 2);
  file.push_back(std::byte{0xFF});
  file.push_back(std::byte{0xD9});
  EXPECT_EQ(decode_rgb(file, {}).status().reason(), Reason::kImgCorrupt);
}

TEST(Jpeg, CountsScansWithoutDecodingThem) {
  const auto file = encode_jpeg(picture(64, 64, 8), {.is_progressive = true});
  EXPECT_TRUE(decode_rgb(file, {.limits = {.max_scans = 10}}).ok());
  EXPECT_EQ(decode_rgb(file, {.limits = {.max_scans = 9}}).status().reason(), Reason::kImgTooManyScans);
  EXPECT_TRUE(decode_rgb(encode_jpeg(picture(64, 64, 8), {}), {.limits = {.max_scans = 1}}).ok());
}

}  // namespace
}  // namespace stoker::testing

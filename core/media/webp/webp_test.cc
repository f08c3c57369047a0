#include "media/webp/webp.h"

#include <gtest/gtest.h>

#include "media/conformance.h"
#include "media/encode_for_test.h"

namespace stoker::testing {

DecodeInto webp_decoder() { return decoder_of<WebpDecoder>(); }

INSTANTIATE_TEST_SUITE_P(Webp, DecoderConformance,
                         ::testing::Values(DecoderCase{"lossy", webp_decoder, test_picture("lossy.webp")},
                                           DecoderCase{"lossless", webp_decoder, test_picture("lossless.webp")},
                                           DecoderCase{"alpha", webp_decoder, test_picture("alpha.webp")},
                                           DecoderCase{"exif", webp_decoder, test_picture("exif.webp")},
                                           DecoderCase{"animated", webp_decoder, test_picture("animated.webp")}),
                         [](const auto& param) { return param.param.name; });

namespace {

TEST(Webp, NamesTheRangeOfItsOrientation) {
  const auto file = test_picture("exif.webp");
  const auto whole = probe(file, file.size(), {});
  ASSERT_TRUE(whole.ok() && whole->is_complete());
  EXPECT_EQ(whole->info->orientation, 6);
  const auto part = probe(std::span(file).first(40), file.size(), {});
  ASSERT_TRUE(part.ok() && part->info && !part->is_complete());
  EXPECT_EQ(part->info->orientation, 1);
  EXPECT_GT(part->need_begin, 100U) << "behind the pixels";
  const auto piece = std::span(file).subspan(part->need_begin, part->need_end - part->need_begin);
  EXPECT_EQ(finish_probe(*part, piece).orientation, 6);
}

// As Pillow has it: what lies behind the end that the RIFF header names is no part of the picture.
TEST(Webp, WhatLiesBehindItsEndHasNoSay) {
  auto file = test_picture("exif.webp");
  const auto range = probe(std::span(file).first(40), file.size(), {});
  ASSERT_TRUE(range.ok());
  const std::uint64_t end = range->need_begin - 8;  // in front of EXIF
  for (std::size_t i = 0; i < 4; ++i) file[4 + i] = static_cast<std::byte>(end >> 8 * i & 0xFF);
  for (const std::size_t n : {std::size_t{40}, std::size_t{100}, file.size()}) {
    const auto part = probe(std::span(file).first(n), file.size(), {});
    ASSERT_TRUE(part.ok() && part->is_complete()) << n;
    EXPECT_EQ(part->info->orientation, 1) << n;
  }
}

TEST(Webp, AnnouncesItsMemory) {
  const auto lossy = test_picture("lossy.webp");
  EXPECT_EQ(probe(lossy, lossy.size(), {})->info->scratch_bytes, 21U * 15 * 4);
}

}  // namespace
}  // namespace stoker::testing

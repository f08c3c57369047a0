#include "data/lengths.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace stoker {
namespace {

ImageLengths image_of(std::uint64_t n) {
  ImageLengths image{.key = media_key("http://store", "s3://b/" + std::to_string(n)),
                     .height_px = static_cast<std::int32_t>(n * 7 + 1),
                     .width_px = 640};
  image.prepared_height_px = image.height_px;
  image.prepared_width_px = n % 3 == 0 ? 320 : image.width_px;
  image.object_bytes = n * 1000;
  image.tag = tag_hash(n % 2 == 0 ? "\"tag\"" : "");
  image.is_size_from_row = n % 5 == 0;
  image.is_inline = n % 7 == 0;
  if (n % 4 == 1) image = {.key = image.key, .bad = Reason::kMediaNotFound};
  return image;
}

std::vector<SampleLengths> samples() {
  std::vector<SampleLengths> out(4);
  out[0].order_index = 3;
  out[1] = {.order_index = UINT64_MAX, .tokens = 500, .n_ids = 40, .n_trained = 12, .is_truncated = true};
  for (std::uint64_t n = 0; n < 9; ++n) out[1].images.push_back({image_of(n), {}});
  out[1].images[3].wish = {.min_pixels = 3, .max_pixels = 1'000'000, .resized_height_px = 20, .resized_width_px = 30};
  out[2] = {.order_index = 5, .tokens = 90, .n_ids = 9, .n_trained = 9};
  out[2].clips.push_back({.frames = {image_of(2), image_of(4)}, .frames_per_s = 1.5, .source_frames_per_s = 29.97});
  out[2].clips.push_back({.frames = {image_of(6)}, .wish = {.total_pixels = 77}});
  out[3] = {.order_index = 6, .bad = Reason::kImgTruncated, .message = "ends", .bad_media = "a.jpg", .bad_image = 0};
  out[3].images.push_back({image_of(1), {}});
  return out;
}

TEST(Lengths, ComeBackAsTheyWere) {
  const std::vector<SampleLengths> sent = samples();
  const std::string bytes = encode_lengths(sent);
  const auto got = decode_lengths(bytes);
  ASSERT_TRUE(got.ok()) << got.status().to_string();
  EXPECT_EQ(*got, sent);
  EXPECT_EQ(encode_lengths(*got), bytes);
  EXPECT_TRUE(decode_lengths(encode_lengths({}))->empty());

  SampleLengths usual{.order_index = 1'000'000, .tokens = 1500, .n_ids = 300, .n_trained = 100};
  usual.images.push_back({{.key = media_key("", "s3://b/k"),
                           .height_px = 768,
                           .width_px = 1024,
                           .prepared_height_px = 768,
                           .prepared_width_px = 1024,
                           .object_bytes = 100'000,
                           .tag = tag_hash("\"5d41402abc4b2a76b9719d911017c592\"")},
                          {}});
  EXPECT_LE(encode_lengths(std::vector(100, usual)).size(), 100U * 48);
}

TEST(Lengths, NoChangedByteIsTaken) {
  const std::string bytes = encode_lengths(samples());
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    EXPECT_FALSE(decode_lengths(bytes.substr(0, at)).ok()) << at;
    std::string changed = bytes;
    changed[at] = static_cast<char>(changed[at] ^ (1 << (at % 8)));
    EXPECT_FALSE(decode_lengths(changed).ok()) << at;
  }
  EXPECT_FALSE(decode_lengths(bytes + "x").ok());
}

TEST(Lengths, WrongValuesUnderARightChecksumAreRefusedOrWrittenTheSame) {
  const std::string bytes = encode_lengths(samples());
  const std::string all = bytes.substr(0, bytes.size() - 8);
  std::uint64_t random = 1;
  int n_refused = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string changed = all;
    for (int k = 0; k <= i % 3; ++k) {
      random = mix64(random);
      changed[8 + random % (changed.size() - 8)] = static_cast<char>(random >> 40);
    }
    const std::uint64_t checksum = hash64(changed);
    for (int shift = 0; shift < 64; shift += 8) changed += static_cast<char>(checksum >> shift);
    const auto got = decode_lengths(changed);
    if (got.ok()) {
      EXPECT_EQ(encode_lengths(*got), changed);
    } else {
      ++n_refused;
    }
  }
  EXPECT_GT(n_refused, 1000);
}

TEST(Lengths, KeysAndTagsTellApartWhatIsAnother) {
  EXPECT_NE(media_key("http://a", "s3://b/k"), media_key("http://c", "s3://b/k"));
  EXPECT_NE(media_key("", "s3://b/k"), media_key("", "s3://b/l"));
  EXPECT_EQ(media_key("http://a", "/data/k.jpg"), media_key("http://c", "/data/k.jpg"));
  EXPECT_EQ(tag_hash("W/\"t\""), tag_hash("\"t\""));
  EXPECT_NE(tag_hash("\"t\""), tag_hash("\"u\""));
  EXPECT_EQ(tag_hash(""), 0U);
}

}  // namespace
}  // namespace stoker

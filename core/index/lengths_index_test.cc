#include "index/lengths_index.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "base/rng.h"

namespace stoker {
namespace {

TextFacts row() {
  return {.n_ids = 40,
          .n_trained = 12,
          .sizes = 99,
          .cuts = {{.n_ids = 20, .n_images = 1, .n_clip_pads = 0, .n_trained = 5}},
          .images = {{.picture = {.key = {1, 2}}, .row_height_px = 480, .row_width_px = 640},
                     {.picture = {.key = {3, 4}, .is_inline = true, .object_bytes = 900}, .wish = {.max_pixels = 7}}},
          .clips = {{.frames = {{.key = {5, 6}}, {.key = {7, 8}}},
                     .row_height_px = 3,
                     .row_width_px = 4,
                     .wish = {.total_pixels = 5},
                     .frames_per_s = 2,
                     .source_frames_per_s = 30}}};
}

std::vector<MediaFacts> media() {
  return {{.height_px = 480, .width_px = 640, .orientation = 6, .object_bytes = 5000, .tag = 77},
          {.height_px = 1, .width_px = 1, .is_turned_always = true},
          {.bad = Status(Reason::kMediaNotFound, "s3://b/k: 404")}};
}

TEST(Facts, ComeBackAsTheyWereAndNothingElseIsTaken) {
  const TextFacts usual{.n_ids = 300, .n_trained = 80, .images = {{.picture = {.key = {1, 2}}}}};
  EXPECT_LE(encode_text(usual).size(), 25U);
  for (const TextFacts& facts : {row(), usual, TextFacts{.n_ids = 3, .n_trained = 1}}) {
    const std::string bytes = encode_text(facts);
    EXPECT_EQ(decode_text(bytes), facts);
    for (std::size_t kept = 0; kept < bytes.size(); ++kept) EXPECT_FALSE(decode_text(bytes.substr(0, kept)));
    EXPECT_FALSE(decode_text(bytes + '\0'));
  }
  for (const MediaFacts& facts : media()) {
    const std::string bytes = encode_media(facts);
    const auto got = decode_media(bytes);
    ASSERT_TRUE(got);
    EXPECT_EQ(encode_media(*got), bytes);
    EXPECT_EQ(got->bad.to_string(), facts.bad.to_string());
    EXPECT_EQ(
        std::tuple(got->height_px, got->width_px, got->orientation, got->is_turned_always, got->object_bytes, got->tag),
        std::tuple(facts.bad.ok() ? facts.height_px : 0, facts.width_px, facts.orientation, facts.is_turned_always,
                   facts.object_bytes, facts.tag));
    for (std::size_t kept = 0; kept < bytes.size(); ++kept) EXPECT_FALSE(decode_media(bytes.substr(0, kept)));
  }
  // No outage is ever remembered as an object's fault.
  EXPECT_FALSE(decode_media(encode_media({.bad = Status(Reason::kFetchTimeout, "")})));
  std::uint64_t random = 1;
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes = i % 2 == 0 ? encode_text(row()) : encode_media(media()[static_cast<std::size_t>(i / 2 % 3)]);
    random = mix64(random + 1);
    bytes[random % bytes.size()] = static_cast<char>(random >> 40);
    if (const auto text = decode_text(bytes)) {
      EXPECT_EQ(encode_text(*text), bytes);
    }
    if (const auto facts = decode_media(bytes)) {
      EXPECT_EQ(encode_media(*facts), bytes);
    }
  }
}

TEST(LengthsIndex, LayersHaveKeysOfTheirOwn) {
  const auto folder =
      std::filesystem::temp_directory_path() / ("stoker-lengths-index-test-" + std::to_string(getpid()));
  std::filesystem::remove_all(folder);
  {
    LengthsIndex index(folder, {1, 1}, {2, 2});
    index.keep_media({1, 2}, media()[0]);
    index.keep_text(4, 5, row());
    // A message that cannot be told in full is not kept: its ledger line would not be the same.
    index.keep_media({3, 3}, {.bad = Status(Reason::kImgCorrupt, std::string(5000, 'x'))});
  }
  const LengthsIndex same(folder, {1, 1}, {2, 2});
  ASSERT_TRUE(same.media({1, 2}));
  EXPECT_EQ(same.media({1, 2})->tag, 77U);
  EXPECT_FALSE(same.media({3, 3}));
  EXPECT_EQ(same.text(4, 5), row());
  EXPECT_FALSE(same.text(5, 4));
  const LengthsIndex other_text(folder, {1, 1}, {3, 2});
  EXPECT_TRUE(other_text.media({1, 2}));
  EXPECT_FALSE(other_text.text(4, 5));
  const LengthsIndex other_media(folder, {9, 1}, {2, 2});
  EXPECT_FALSE(other_media.media({1, 2}));
  EXPECT_TRUE(other_media.text(4, 5));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace stoker

#include "model/qwen_vl/box_text.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "model/qwen2_5_vl/qwen2_5_vl.h"
#include "model/qwen2_vl/qwen2_vl.h"
#include "model/qwen3_vl/qwen3_vl.h"

namespace stoker::qwen_vl {
namespace {

Part text(std::string words) { return {Part::Kind::kText, std::move(words), 0}; }

/// A picture and a question with the marks of `boxes`, text round each.
Sample asking(std::vector<Box> boxes) {
  Sample sample;
  sample.media.push_back({.kind = MediaKind::kImage, .reference = "a.png"});
  Turn turn;
  turn.has_content = true;
  turn.parts.push_back({Part::Kind::kImage, {}, 0});
  turn.parts.push_back(text("at "));
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    turn.parts.push_back({Part::Kind::kBox, {}, static_cast<std::uint32_t>(i)});
    turn.parts.push_back(text(";"));
  }
  sample.turns = {turn};
  sample.boxes = std::move(boxes);
  return sample;
}

std::string written(const Family& family, std::vector<Box> boxes, BoxPicture picture) {
  Sample sample = asking(std::move(boxes));
  const Status status = write_boxes(family.box_units, family.box_form, std::vector{picture}, sample);
  if (!status.ok()) return std::string(name_of(status.reason())) + ": " + status.message();
  EXPECT_TRUE(sample.boxes.empty());
  EXPECT_EQ(sample.turns[0].parts.size(), 2U) << "the picture, and one text";
  return sample.turns[0].parts.back().text;
}

constexpr BoxPicture kPicture{.upright = {480, 640}, .target = {476, 644}};

TEST(BoxText, EveryFamilyWritesItsOwn) {
  const std::vector<Box> boxes = {{.name = "dog"}, {.points = {64, 48, 320, 240}}, {.points = {1, 479}}};
  EXPECT_EQ(written(qwen2_vl::family(), boxes, kPicture),
            "at <|object_ref_start|>dog<|object_ref_end|>;<|box_start|>(100,100),(500,500)<|box_end|>;"
            "<|box_start|>(2,998)<|box_end|>;");
  EXPECT_EQ(written(qwen2_5_vl::family(), boxes, kPicture), "at dog;[64, 48, 322, 238];[1, 475];");
  EXPECT_EQ(written(qwen3_vl::family(), boxes, kPicture), "at dog;[100, 100, 500, 500];[2, 998];");
}

TEST(BoxText, SharesOfTheSides) {
  EXPECT_EQ(written(qwen3_vl::family(), {{.points = {0, 0.25, 1, 1}, .is_share_of_sides = true}}, kPicture),
            "at [0, 250, 1000, 1000];");
  EXPECT_EQ(written(qwen2_5_vl::family(), {{.points = {0, 0.25, 1, 1}, .is_share_of_sides = true}}, kPicture),
            "at [0, 119, 644, 476];");
}

TEST(BoxText, HalvesGoToTheEvenNumberAndTheEdgeIsInside) {
  const BoxPicture thousand{.upright = {2000, 2000}, .target = {2000, 2000}};
  EXPECT_EQ(written(qwen3_vl::family(), {{.points = {1, 3, 5, 7}}}, thousand), "at [0, 2, 2, 4];");
  EXPECT_EQ(written(qwen3_vl::family(), {{.points = {-0.9, -0.5, 2000.9, 2001}}}, thousand), "at [0, 0, 1000, 1000];");
}

TEST(BoxText, WhatIsNoPlaceIsSaid) {
  const auto said = [](std::vector<double> points, bool is_share = false) {
    return written(qwen3_vl::family(),
                   {{.points = {1, 1, 2, 2}}, {.points = std::move(points), .is_share_of_sides = is_share}},
                   is_share ? BoxPicture{{4, 4}, {4, 4}} : kPicture);
  };
  EXPECT_EQ(
      said({0, 0, 641, 480}),
      "BOX_PLACE: box 2 of the row, [0, 0, 641, 480], lies outside its picture, which is 480x640 (height x width, "
      "upright)");
  EXPECT_EQ(
      said({-2, 0}),
      "BOX_PLACE: box 2 of the row, [-2, 0], lies outside its picture, which is 480x640 (height x width, upright)");
  EXPECT_EQ(
      said({300, 200, 50, 60}),
      "BOX_PLACE: box 2 of the row, [300, 200, 50, 60], has no area: a box is x1, y1, x2, y2 with x1 < x2 and y1 < "
      "y2; two numbers are a point");
  EXPECT_EQ(said({5, 5, 5, 9}).substr(0, 9), "BOX_PLACE");
  EXPECT_EQ(
      said({10, 0, 20, 30}, true),
      "BOX_PLACE: box 2 of the row, [10, 0, 20, 30], lies outside its picture: with bbox_type norm1 numbers go from "
      "0 to 1");
}

TEST(BoxText, APictureOfUnknownSizeGivesTheLeastText) {
  EXPECT_EQ(written(qwen2_5_vl::family(), {{.points = {700, 5, 9000, 9000}}}, {}), "at [0, 0, 0, 0];");
}

TEST(BoxText, PicturesAreCountedWithoutClipsAndTextsAwayFromBoxesStayApart) {
  Sample sample;
  sample.media.resize(3);
  sample.media[0].kind = MediaKind::kVideo;
  sample.boxes = {{.media = 2, .points = {1, 1}}};
  Turn turn;
  turn.parts = {text("a"), text("b"), {Part::Kind::kBox, {}, 0}, {Part::Kind::kImage, {}, 1}, text("c"), text("d")};
  sample.turns = {turn};
  const std::vector<BoxPicture> pictures = {{{10, 10}, {10, 10}}, {{100, 100}, {100, 100}}};
  ASSERT_TRUE(write_boxes(BoxUnits::kPerMille, BoxForm::kList, pictures, sample).ok());
  std::vector<std::string> texts;
  for (const Part& part : sample.turns[0].parts) texts.push_back(part.kind == Part::Kind::kText ? part.text : "*");
  EXPECT_EQ(texts, (std::vector<std::string>{"a", "b[10, 10]", "*", "c", "d"}));
}

}  // namespace
}  // namespace stoker::qwen_vl

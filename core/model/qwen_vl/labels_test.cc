#include "model/qwen_vl/labels.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "model/qwen_vl/qwen_vl.h"

namespace stoker::qwen_vl {
namespace {

Turn turn(Role role, std::string text, std::optional<float> loss = std::nullopt) {
  Turn t;
  t.role = role;
  t.has_content = !text.empty();
  if (t.has_content) t.parts.push_back({Part::Kind::kText, std::move(text), 0});
  t.loss_scale = loss;
  return t;
}

const std::filesystem::path kModel = std::filesystem::path(STOKER_TESTDATA) / "qwen3-vl";

/// The trained tokens as text would need a decoder; their ids do.
std::vector<std::int32_t> trained(const std::vector<Turn>& turns, LabelRule rule) {
  const auto model = QwenVl::load(kModel, profiles().front(), {.labels = rule}).value();
  Sample sample;
  sample.turns = turns;
  const auto text = model->encode(sample);
  if (!text.ok()) return {-static_cast<std::int32_t>(text.status().reason())};
  std::vector<std::int32_t> ids;
  for (std::size_t i = 0; i < text->ids.size(); ++i) {
    if (text->is_trained[i] != 0) ids.push_back(text->ids[i]);
  }
  EXPECT_EQ(text->n_trained, static_cast<std::int32_t>(ids.size()));
  return ids;
}

constexpr std::int32_t kStart = 151644, kEnd = 151645, kFeed = 198, kUser = 872, kAssistant = 77091;
constexpr std::int32_t kHi = 6023, kYes = 9693, kNo = 2152;  // "hi", "yes", "no"
const std::vector<Turn> kTwoRounds = {turn(Role::kUser, "hi"), turn(Role::kAssistant, "yes"), turn(Role::kUser, "hi"),
                                      turn(Role::kAssistant, "no")};
using Ids = std::vector<std::int32_t>;

TEST(Labels, TurnsOfTheChosenRoles) {
  EXPECT_EQ(trained(kTwoRounds, {}), (Ids{kYes, kEnd, kFeed, kNo, kEnd, kFeed}));
  EXPECT_EQ(trained(kTwoRounds, {.roles = 1U << static_cast<unsigned>(Role::kUser)}),
            (Ids{kHi, kEnd, kFeed, kHi, kEnd, kFeed}));
  EXPECT_EQ(trained(kTwoRounds, {.train_on = TrainOn::kLastTurn}), (Ids{kNo, kEnd, kFeed}));
}

TEST(Labels, EndOfTurn) {
  EXPECT_EQ(trained(kTwoRounds, {.end_of_turn = EndOfTurn::kToken}), (Ids{kYes, kEnd, kNo, kEnd}));
  EXPECT_EQ(trained(kTwoRounds, {.end_of_turn = EndOfTurn::kNone}), (Ids{kYes, kNo}));
}

TEST(Labels, AllButTheFirst) {
  EXPECT_EQ(trained({turn(Role::kUser, "hi"), turn(Role::kAssistant, "yes")}, {.train_on = TrainOn::kAll}),
            (Ids{kUser, kFeed, kHi, kEnd, kFeed, kStart, kAssistant, kFeed, kYes, kEnd, kFeed}));
}

TEST(Labels, ATurnsOwnWordComesFirst) {
  std::vector<Turn> turns = kTwoRounds;
  turns[0].loss_scale = 1.0F;
  turns[3].loss_scale = 0.0F;
  EXPECT_EQ(trained(turns, {}), (Ids{kHi, kEnd, kFeed, kYes, kEnd, kFeed}));
  turns[1].loss_scale = 0.5F;
  EXPECT_EQ(trained(turns, {}), Ids{-static_cast<std::int32_t>(Reason::kRowSchema)});
  turns = kTwoRounds;
  turns[1].loss_scale = turns[3].loss_scale = 0.0F;
  EXPECT_EQ(trained(turns, {}), Ids{-static_cast<std::int32_t>(Reason::kNoLossTokens)});
}

TEST(Labels, WeightsAreRejectedOrDelivered) {
  std::vector<Turn> turns = kTwoRounds;
  turns[1].loss_scale = 0.25F;
  turns[2].loss_scale = 3.0F;
  Sample sample;
  sample.turns = turns;
  const auto refused = QwenVl::load(kModel, profiles().front()).value()->encode(sample).status();
  EXPECT_EQ(refused.reason(), Reason::kRowSchema);
  EXPECT_NE(refused.message().find("labels.weights: deliver"), std::string::npos) << refused.message();

  const LabelRule rule{.weights = LossWeights::kDeliver};
  EXPECT_EQ(trained(turns, rule), (Ids{kYes, kEnd, kFeed, kHi, kEnd, kFeed, kNo, kEnd, kFeed}));
  const auto model = QwenVl::load(kModel, profiles().front(), {.labels = rule}).value();
  const auto text = model->encode(sample).value();
  std::vector<float> weights;
  for (std::size_t i = 0; i < text.ids.size(); ++i) {
    if (text.is_trained[i] != 0) weights.push_back(text.loss_weights.at(i));
  }
  EXPECT_EQ(weights, (std::vector<float>{0.25F, 0.25F, 0.25F, 3, 3, 3, 1, 1, 1}));
  EXPECT_EQ(text.loss_weights.size(), text.ids.size());
  sample.turns = kTwoRounds;
  EXPECT_TRUE(model->encode(sample)->loss_weights.empty()) << "weights of 1 take no memory";
}

TEST(Labels, ToolTurnsOfOneBlockMustAgree) {
  std::vector<Turn> turns = {turn(Role::kUser, "hi"), turn(Role::kAssistant, "yes"), turn(Role::kTool, "a", 1.0F),
                             turn(Role::kTool, "b"), turn(Role::kAssistant, "no")};
  EXPECT_EQ(trained(turns, {}), Ids{-static_cast<std::int32_t>(Reason::kRowSchema)});
  turns[3].loss_scale = 1.0F;
  EXPECT_GT(trained(turns, {}).size(), 6U);
}

TEST(Labels, WhatTheTemplateLeavesOutIsAnErrorUnlessTheProfileAllowsIt) {
  Sample sample;
  sample.turns = {turn(Role::kDeveloper, "obey"), turn(Role::kUser, "hi"), turn(Role::kAssistant, "yes")};
  const auto ours = QwenVl::load(kModel, profiles().front()).value();
  const Status refused = ours->encode(sample).status();
  EXPECT_EQ(refused.reason(), Reason::kRoleUnknown);
  EXPECT_NE(refused.message().find("turn 1"), std::string::npos) << refused.message();
  const auto strict = QwenVl::load(kModel, *find_profile("hf-5.18-torchvision")).value();
  EXPECT_TRUE(strict->encode(sample).ok());
  sample.turns[0].role = Role::kUser;
  sample.turns.push_back(turn(Role::kSystem, "late"));
  EXPECT_EQ(ours->encode(sample).status().reason(), Reason::kTurnOrder);
}

}  // namespace
}  // namespace stoker::qwen_vl

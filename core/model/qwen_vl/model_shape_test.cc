#include "model/qwen_vl/model_shape.h"

#include <gtest/gtest.h>

#include <string>

namespace stoker::qwen_vl {
namespace {

std::optional<CostModel> cost_of_config(const std::string& text) {
  simdjson::dom::parser parser;
  simdjson::dom::object root;
  EXPECT_EQ(parser.parse(text).get(root), simdjson::SUCCESS);
  const std::optional<ModelShape> shape = read_shape(JsonFields(root, "config.json"));
  if (!shape) return std::nullopt;
  return cost_of(*shape);
}

constexpr const char* kText = R"("hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 32,
  "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 12288, "vocab_size": 151936)";
constexpr const char* kVision = R"("vision_config": {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304,
  "in_channels": 3, "patch_size": 16, "temporal_patch_size": 2, "spatial_merge_size": 2, "out_hidden_size": 4096,
  "deepstack_visual_indexes": [8, 16, 24]})";

std::string config(const std::string& text, const std::string& vision) {
  return R"({"text_config": {)" + text + "}, " + vision + "}";
}

// The released configs' numbers; 45.4e9 FLOPs per token, 0.885e6 per token^2, 2.72e9 per patch, 0.373e6 per patch^2.
TEST(ReadShape, Qwen3Vl8bIsTheDefault) { EXPECT_EQ(cost_of_config(config(kText, kVision)), CostModel{}); }

TEST(ReadShape, TextFieldsMayStandAtTheTop) {
  EXPECT_EQ(cost_of_config("{" + std::string(kText) + ", " + kVision + "}"), CostModel{});
}

// Qwen2-VL-7B: no head_dim; embed_dim and mlp_ratio, while hidden_size is the text model's.
TEST(ReadShape, Qwen2Vl) {
  const auto cost = cost_of_config(R"({"hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28,
    "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064, "vision_config": {"depth": 32,
    "embed_dim": 1280, "hidden_size": 3584, "mlp_ratio": 4, "in_chans": 3, "patch_size": 14, "temporal_patch_size": 2,
    "spatial_merge_size": 2}})");
  ASSERT_TRUE(cost);
  // 28 * (3584 * 2 * (3584 + 512) + 3 * 3584 * 18944) + 152064 * 3584 = 7,070,285,824 parameters
  EXPECT_EQ(cost->language_per_token, 42'400'000);
  EXPECT_EQ(cost->language_per_token_pair, 602);  // 6 * 3584 * 28
  EXPECT_EQ(cost->vision_per_patch, 3'850'000);   // 6 * (32 * 12 * 1280^2 + 1176 * 1280 + (5120^2 + 5120 * 3584) / 4)
  EXPECT_EQ(cost->vision_per_patch_pair, 492);    // 12 * 1280 * 32
}

// Qwen2.5-VL-7B: windows of 64 patches in 28 of 32 layers, three matrices in the MLP.
TEST(ReadShape, Qwen25Vl) {
  const auto cost = cost_of_config(config(kText, R"("vision_config": {"depth": 32, "hidden_size": 1280,
    "intermediate_size": 3420, "in_chans": 3, "patch_size": 14, "temporal_patch_size": 2, "spatial_merge_size": 2,
    "out_hidden_size": 4096, "window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31]})"));
  ASSERT_TRUE(cost);
  EXPECT_EQ(cost->vision_per_patch_pair, 61);  // 12 * 1280 * 4
  // 6 * (32 * (4 * 1280^2 + 3 * 1280 * 3420) + 1176 * 1280 + (5120^2 + 5120 * 4096) / 4) + 12 * 1280 * 64 * 28
  EXPECT_EQ(cost->vision_per_patch, 3'890'000);
}

// Qwen3-VL-30B-A3B: 8 experts of 768 in every layer.
TEST(ReadShape, OfExpertsTheActiveOnes) {
  const std::string experts = R"("hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32,
    "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144, "vocab_size": 151936, "num_experts": 128,
    "num_experts_per_tok": 8, "moe_intermediate_size": 768, "decoder_sparse_step": 1, "mlp_only_layers": [])";
  const auto cost = cost_of_config(config(experts, kVision));
  ASSERT_TRUE(cost);
  // 48 * (2048 * 2 * (4096 + 512) + 3 * 2048 * 6144) + 151936 * 2048 = 3,029,073,920 parameters
  EXPECT_EQ(cost->language_per_token, 18'200'000);
}

TEST(ReadShape, WhatIsMissingOrWrongIsNoShape) {
  for (const std::string& text :
       {std::string("{}"), std::string(R"({"vision_config": {}})"), config("", kVision),
        config(kText, R"("vision_config": {"depth": 27})"), config(kText, R"("vision_config": 3)"),
        config(R"("hidden_size": -1)", kVision), config(R"("hidden_size": "large")", kVision)}) {
    EXPECT_FALSE(cost_of_config(text)) << text;
  }
}

}  // namespace
}  // namespace stoker::qwen_vl

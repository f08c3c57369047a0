#include "plan/cost.h"

#include <gtest/gtest.h>

namespace stoker {
namespace {

constexpr ModelShape kQwen3Vl8b = {.layers = 36,
                                   .hidden = 4096,
                                   .query_width = 32 * 128,
                                   .key_width = 8 * 128,
                                   .mlp = 36 * 12288,
                                   .vocabulary = 151936,
                                   .depth = 27,
                                   .width = 1152,
                                   .vision_mlp = 4304,
                                   .patch_values = 3 * 2 * 16 * 16,
                                   .mergers = 4,
                                   .global_layers = 27};

TEST(CostOf, ShapeOfQwen3Vl8bGivesTheDefaults) { EXPECT_EQ(cost_of(kQwen3Vl8b), CostModel{}); }

TEST(CostOf, WindowsCostByThePatchAndNotByThePair) {
  ModelShape windowed = kQwen3Vl8b;
  windowed.global_layers = 3;
  windowed.window_patches = 64;
  const CostModel cost = cost_of(windowed);
  EXPECT_EQ(cost.vision_per_patch_pair, 42);    // 12 * 1152 * 3 = 41,472, to three digits
  EXPECT_EQ(cost.vision_per_patch, 2'740'000);  // 2.7177e9 + 12 * 1152 * 64 * 24
  EXPECT_EQ(cost.language_per_token, CostModel{}.language_per_token);
}

TEST(CostOf, SmallModelsStillCostSomethingAndHugeOnesDoNotOverflow) {
  const CostModel tiny = cost_of({.layers = 1,
                                  .hidden = 8,
                                  .query_width = 8,
                                  .key_width = 8,
                                  .mlp = 8,
                                  .vocabulary = 10,
                                  .depth = 1,
                                  .width = 8,
                                  .vision_mlp = 8,
                                  .patch_values = 8,
                                  .global_layers = 1});
  EXPECT_GE(tiny.language_per_token, 1);
  EXPECT_EQ(tiny.language_per_token_pair, 1);
  EXPECT_EQ(tiny.vision_per_patch_pair, 1);
  const CostModel huge = cost_of({.layers = 4096,
                                  .hidden = 1 << 18,
                                  .query_width = 1 << 18,
                                  .key_width = 1 << 18,
                                  .mlp = 1 << 24,
                                  .vocabulary = 1 << 24});
  EXPECT_LT(huge.language_per_token, kMostPerUnit);
  EXPECT_LT(huge.language_per_token_pair, kMostPerPair);
  EXPECT_GT(huge.language(10'000'000), 0);
}

}  // namespace
}  // namespace stoker

#include "engine/loader_state.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace stoker {
namespace {

using Names = std::vector<std::string>;

LoaderState state() {
  return {.fingerprint = "data=1 pack=2 seed=3",
          .cursor = {.step = 9, .window = 4, .packs_delivered = 5, .window_digest = "d"},
          .dp_size = 8};
}

TEST(LoaderState, NamesEverySettingThatDiffers) {
  EXPECT_EQ(differing_settings("a=1 b=2", "a=1 b=3"), Names{"b"});
  EXPECT_EQ(differing_settings("b=1 c=2", "a=1 c=3"), (Names{"a", "b", "c"}));
  EXPECT_EQ(differing_settings("a=1", "a=1"), Names{});
  EXPECT_EQ(differing_setting("a=1", "a=1 c=2"), "c");
  EXPECT_EQ(differing_setting("a=1", "a=1"), "");
}

TEST(LoaderState, AnEqualFingerprintGoesOnWhereItWas) {
  const auto point = resume_point(state(), state().fingerprint, Names{"seed"});
  ASSERT_TRUE(point.ok());
  EXPECT_EQ(point->cursor, state().cursor);
  EXPECT_EQ(point->warning, "");
}

TEST(LoaderState, AChangedSettingIsRefusedByName) {
  const auto point = resume_point(state(), "data=1 pack=7 seed=8", Names{"pack"});
  ASSERT_FALSE(point.ok());
  EXPECT_EQ(point.status().reason(), Reason::kState);
  EXPECT_NE(point.status().message().find("`seed`"), std::string::npos);
  EXPECT_EQ(point.status().message().find("`pack`"), std::string::npos) << "that one was accepted";
}

TEST(LoaderState, AnAcceptedChangeGoesOnAtTheWindowsBeginning) {
  const auto point = resume_point(state(), "data=1 pack=7 seed=3", Names{"pack"});
  ASSERT_TRUE(point.ok());
  EXPECT_EQ(point->cursor, (PlanState{.step = 9, .window = 4, .packs_delivered = 0, .window_digest = ""}));
  EXPECT_NE(point->warning.find("none is left out"), std::string::npos);
  const auto other_order = resume_point(state(), "data=1 pack=2 seed=8", Names{"seed"});
  ASSERT_TRUE(other_order.ok());
  EXPECT_NE(other_order->warning.find("order is another one"), std::string::npos);
}

TEST(LoaderState, AnotherVersionIsRefused) {
  LoaderState newer = state();
  newer.version = 2;
  EXPECT_EQ(resume_point(newer, newer.fingerprint, {}).status().reason(), Reason::kState);
}

}  // namespace
}  // namespace stoker

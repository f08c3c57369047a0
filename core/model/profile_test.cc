#include "model/profile.h"

#include <gtest/gtest.h>

#include <set>

namespace stoker {
namespace {

TEST(Profiles, AreFoundByNameAndDifferInTheirFacts) {
  std::set<std::string> facts;
  for (const Profile& profile : profiles()) {
    ASSERT_EQ(find_profile(profile.name), &profile);
    EXPECT_TRUE(facts.insert(profile.facts()).second) << profile.name;
  }
  EXPECT_EQ(facts.size(), 5U);
  EXPECT_EQ(profiles().front().name, "stoker");
  EXPECT_EQ(find_profile("hf-5.18"), nullptr);
}

TEST(Profiles, StrictOnesAreRawAndLoseTurnsAsTheTemplateDoes) {
  for (const Profile& profile : profiles()) {
    EXPECT_EQ(profile.content_tokens == ContentTokens::kRaw, profile.is_strict) << profile.name;
    EXPECT_EQ(profile.dropped_roles == DroppedRoles::kDrop, profile.is_strict) << profile.name;
  }
}

TEST(ResolveProfile, TakesWhatTheSettingsSayAndNamesContradictions) {
  const Profile own = resolve_profile("stoker", {.alpha = "drop", .content_tokens = "raw"}).value();
  EXPECT_EQ(own.alpha, AlphaRule::kDrop);
  EXPECT_EQ(own.content_tokens, ContentTokens::kRaw);
  EXPECT_NE(own.facts(), find_profile("stoker")->facts());
  EXPECT_TRUE(resolve_profile("hf-5.18-pil", {.exif = "apply", .alpha = "drop"}).ok());
  const auto against = resolve_profile("hf-5.18-pil", {.alpha = "white"});
  EXPECT_EQ(against.status().reason(), Reason::kSettings);
  EXPECT_NE(against.status().message().find("media.alpha: white contradicts reference: hf-5.18-pil, which has drop"),
            std::string::npos);
  EXPECT_FALSE(resolve_profile("stoker", {.exif = "maybe"}).ok());
  EXPECT_FALSE(resolve_profile("hf-6", {}).ok());
}

TEST(ResolveProfile, WordsGiveTheSameProfileBack) {
  for (const Profile& profile : profiles()) {
    EXPECT_EQ(resolve_profile(profile.name, words_of(profile)).value().facts(), profile.facts());
  }
}

}  // namespace
}  // namespace stoker

#include "plan/placing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>

#include "base/rng.h"
#include "plan/mixture_for_test.h"
#include "plan/padding.h"
#include "plan/plan.h"

namespace stoker {
namespace {

// Samples of which none is over the settings' limits, small integers only.
std::vector<PlanSample> drawn(std::uint64_t seed, std::size_t n, const PackSettings& settings) {
  Rng rng(seed);
  std::vector<PlanSample> samples(n);
  for (std::size_t i = 0; i < n; ++i) {
    PlanSample& s = samples[i];
    s.order_index = i;
    const std::int64_t most = longest_sample(settings);
    s.tokens =
        1 + static_cast<std::int64_t>(rng.next() % static_cast<std::uint64_t>(std::max<std::int64_t>(1, most / 2)));
    if (rng.next() % 16 == 0) s.tokens = most;
    const std::uint64_t kind = rng.next() % 10;
    s.images = kind < 5 ? static_cast<std::int32_t>(1 + rng.next() % 3) : 0;
    s.videos = kind == 9 ? 1 : 0;
    s.patches = (s.images + 4 * s.videos) * static_cast<std::int64_t>(4 + rng.next() % 60);
    s.target_tokens = s.tokens / 3;
    s.cost_language = CostModel{}.language(s.tokens);
    s.cost_vision = CostModel{}.vision(s.patches);
    s.usable = rng.next() % 8 != 0 && check_fits(settings, s).ok();
  }
  return samples;
}

std::vector<PackSettings> all_settings() {
  std::vector<PackSettings> all;
  for (const PackForm form : {PackForm::kPacked, PackForm::kSamples, PackForm::kTokenBudget}) {
    for (const PackBalance balance : {PackBalance::kFlops, PackBalance::kTokens, PackBalance::kNone}) {
      for (const auto& [align, pad] : {std::pair(1, 1), std::pair(8, 1), std::pair(8, 40), std::pair(1, 512)}) {
        for (const VisionUniform uniform :
             {VisionUniform::kNone, VisionUniform::kImage, VisionUniform::kImageAndVideo}) {
          for (const bool has_limits : {false, true}) {
            PackSettings s{.tokens_per_pack = 512,
                           .form = form,
                           .samples_per_pack = form == PackForm::kSamples ? 5 : 1,
                           .balance = balance,
                           .max_images = has_limits ? 6 : 0,
                           .max_patches = has_limits ? 300 : 0,
                           .align_samples_to = align,
                           .pad_to = pad,
                           .vision_uniform = uniform};
            if (check_pack_settings(s).ok()) all.push_back(s);
          }
        }
      }
    }
  }
  return all;
}

std::string described(const PackSettings& s) {
  return "form " + std::to_string(static_cast<int>(s.form)) + " balance " +
         std::to_string(static_cast<int>(s.balance)) + " align " + std::to_string(s.align_samples_to) + " pad " +
         std::to_string(s.pad_to) + " uniform " + std::to_string(static_cast<int>(s.vision_uniform)) + " limits " +
         std::to_string(s.max_images);
}

WindowPlan planned(std::span<const PlanSample> samples, const PackSettings& settings, std::uint64_t window = 0) {
  auto plan = plan_window(window, samples, settings);
  EXPECT_TRUE(plan.ok()) << plan.status().to_string();
  return plan.ok() ? *std::move(plan) : WindowPlan{};
}

// What a pack's plan says, reckoned anew from what the settings are documented to mean.
void expect_sound(const PackSettings& s, const PackPlan& pack, std::span<const PlanSample> samples) {
  const auto up = [](std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; };
  std::int64_t aligned = 0, longest = 0, images = 0, videos = 0, patches = 0;
  for (const std::uint32_t i : pack.members) {
    aligned += up(samples[i].tokens, s.align_samples_to);
    longest = std::max(longest, samples[i].tokens);
    images += samples[i].images;
    videos += samples[i].videos;
    patches += samples[i].patches;
  }
  const bool lacks_image = s.vision_uniform != VisionUniform::kNone && images == 0;
  const bool lacks_video = s.vision_uniform == VisionUniform::kImageAndVideo && videos == 0;
  EXPECT_EQ(pack.needs_image_dummy, lacks_image);
  EXPECT_EQ(pack.needs_video_dummy, lacks_video);
  EXPECT_EQ(pack.aligned_tokens, aligned);
  const std::int64_t dummy = (lacks_image ? 3 : 0) + (lacks_video ? 3 : 0);
  if (s.form == PackForm::kPacked) {
    EXPECT_EQ(pack.total_tokens, up(aligned + up(dummy, s.align_samples_to), s.pad_to));
    EXPECT_EQ(pack.row_tokens, 0);
  } else {
    EXPECT_EQ(pack.row_tokens, up(up(std::max(longest, dummy), s.align_samples_to), s.pad_to));
    EXPECT_EQ(pack.total_tokens,
              pack.row_tokens * (static_cast<std::int64_t>(pack.members.size()) + (dummy > 0 ? 1 : 0)));
  }
  if (s.form == PackForm::kSamples) {
    EXPECT_LE(pack.members.size(), static_cast<std::size_t>(s.samples_per_pack));
  } else {
    EXPECT_LE(pack.total_tokens, s.tokens_per_pack);
  }
  if (s.max_images > 0) {
    EXPECT_LE(images + videos, s.max_images);
    EXPECT_LE(patches, s.max_patches);
  }
}

TEST(PlanForms, EverySampleOnceWithinAllLimitsUnderEverySetting) {
  const std::vector<PackSettings> all = all_settings();
  ASSERT_GT(all.size(), 150U);
  for (std::size_t k = 0; k < all.size(); ++k) {
    const PackSettings& settings = all[k];
    const auto samples = drawn(k, 1 + k * 7 % 400, settings);
    const WindowPlan plan = planned(samples, settings, k % 2);
    std::vector<int> n_seen(samples.size(), 0);
    for (const PackPlan& pack : plan.packs) {
      ASSERT_FALSE(pack.members.empty());
      EXPECT_TRUE(std::is_sorted(pack.members.begin(), pack.members.end()));
      for (const std::uint32_t i : pack.members) ++n_seen[i];
      expect_sound(settings, pack, samples);
    }
    for (std::size_t i = 0; i < samples.size(); ++i) ASSERT_EQ(n_seen[i], samples[i].usable ? 1 : 0) << i;
    EXPECT_EQ(planned(samples, settings, k % 2).digest(), plan.digest());
    if (HasFailure()) FAIL() << described(settings);
  }
}

// A late bad sample may take any of a pack's vision with it, and the dummy must find room.
TEST(PlanForms, RoomForADummyIsKeptInEveryPack) {
  PackSettings s{.tokens_per_pack = 256, .align_samples_to = 16, .vision_uniform = VisionUniform::kImageAndVideo};
  EXPECT_EQ(reserved_tokens(s), 16);
  EXPECT_EQ(longest_sample(s), 240);
  const WindowPlan plan = planned(drawn(3, 300, s), s);
  for (const PackPlan& pack : plan.packs) EXPECT_LE(pack.aligned_tokens, 240);
  s.form = PackForm::kTokenBudget;
  EXPECT_EQ(longest_sample(s), 128);
}

TEST(PlanForms, AsFewPacksAsPossibleLackVision) {
  for (const PackForm form : {PackForm::kPacked, PackForm::kSamples, PackForm::kTokenBudget}) {
    PackSettings s{.form = form,
                   .samples_per_pack = form == PackForm::kSamples ? 8 : 1,
                   .vision_uniform = VisionUniform::kImageAndVideo};
    std::vector<PlanSample> samples = Mixture(3).window(4096);
    for (PlanSample& sample : samples) sample.usable = sample.usable && check_fits(s, sample).ok();
    const WindowPlan plan = planned(samples, s);
    const auto n_with = [&](auto has) {
      return std::count_if(samples.begin(), samples.end(), [&](const PlanSample& x) { return x.usable && has(x); });
    };
    const auto n_packs = std::ssize(plan.packs);
    const auto n_images = n_with([](const PlanSample& x) { return x.images > 0; });
    const auto n_videos = n_with([](const PlanSample& x) { return x.videos > 0; });
    const auto lacking = [&](bool PackPlan::*needs) {
      return std::count_if(plan.packs.begin(), plan.packs.end(), [&](const PackPlan& p) { return p.*needs; });
    };
    const auto least = [&](std::ptrdiff_t n) { return std::max<std::ptrdiff_t>(0, n_packs - n); };
    // Clips are long, and many short rows of a budget have no room for one.
    const auto spare = n_packs / (form == PackForm::kTokenBudget ? 10 : 100);
    EXPECT_LE(lacking(&PackPlan::needs_image_dummy), least(n_images) + spare) << static_cast<int>(form);
    EXPECT_LE(lacking(&PackPlan::needs_video_dummy), least(n_videos) + spare) << static_cast<int>(form);
  }
}

TEST(PlanForms, WithoutBalanceTheOrderIsKept) {
  for (const PackForm form : {PackForm::kPacked, PackForm::kSamples, PackForm::kTokenBudget}) {
    PackSettings s{.tokens_per_pack = 512,
                   .form = form,
                   .samples_per_pack = form == PackForm::kSamples ? 4 : 1,
                   .balance = PackBalance::kNone};
    const auto samples = drawn(5, 200, s);
    std::vector<std::uint32_t> usable, found;
    for (std::uint32_t i = 0; i < samples.size(); ++i) {
      if (samples[i].usable) usable.push_back(i);
    }
    for (const std::uint64_t window : {0U, 1U}) {
      found.clear();
      const WindowPlan plan = planned(samples, s, window);
      for (const PackPlan& p : plan.packs) found.insert(found.end(), p.members.begin(), p.members.end());
      EXPECT_EQ(found, usable);
    }
  }
}

TEST(PlanForms, RowsOfAboutOneLengthShareAMicroBatch) {
  PackSettings s{.form = PackForm::kSamples, .samples_per_pack = 8};
  const auto samples = Mixture(5).window(4096);
  std::int64_t tokens = 0, delivered = 0, in_order = 0;
  const WindowPlan alike = planned(samples, s);
  for (const PackPlan& pack : alike.packs) tokens += pack.tokens, delivered += pack.total_tokens;
  s.balance = PackBalance::kNone;
  const WindowPlan as_they_come = planned(samples, s);
  for (const PackPlan& pack : as_they_come.packs) in_order += pack.total_tokens;
  EXPECT_LT(delivered * 100, tokens * 105);
  EXPECT_GT(in_order * 100, tokens * 200);  // what a batch size over shuffled rows pads
}

TEST(PlanForms, PaddedRowsCostAsTheDearest) {
  PackSettings s{.tokens_per_pack = 100, .form = PackForm::kSamples, .samples_per_pack = 3};
  std::vector<PlanSample> samples(3);
  for (std::size_t i = 0; i < 3; ++i) {
    samples[i] = {.order_index = i, .tokens = 10 * static_cast<std::int64_t>(i + 1), .cost_vision = 7};
    samples[i].cost_language = samples[i].tokens * 100;
  }
  const WindowPlan plan = planned(samples, s);
  ASSERT_EQ(plan.packs.size(), 1U);
  EXPECT_EQ(plan.packs[0].cost_language, 3 * 3000);
  EXPECT_EQ(plan.packs[0].cost_vision, 21);
  EXPECT_EQ(plan.packs[0].total_tokens, 90);
}

TEST(PlanForms, WhatAloneExceedsALimitIsSaid) {
  const PackSettings s{.tokens_per_pack = 100, .max_images = 2, .max_patches = 50, .align_samples_to = 8};
  EXPECT_TRUE(check_fits(s, {.tokens = 96, .patches = 50, .images = 1, .videos = 1}).ok());
  EXPECT_EQ(check_fits(s, {.tokens = 97}).reason(), Reason::kSeqTooLong);
  EXPECT_EQ(check_fits(s, {.tokens = 9, .images = 2, .videos = 1}).reason(), Reason::kPackLimit);
  EXPECT_EQ(check_fits(s, {.tokens = 9, .patches = 51}).reason(), Reason::kPackLimit);
  const std::vector<PlanSample> one = {{.tokens = 9, .patches = 51}};
  EXPECT_EQ(plan_window(0, one, s).status().reason(), Reason::kInternal);
}

// If this fails, every user's run with such settings changes.
TEST(PlanForms, LiteralPlans) {
  const auto digest = [](const PackSettings& s) { return planned(drawn(9, 500, s), s).digest(); };
  const auto digests = [&](PackBalance balance) {
    std::vector<std::string> found;
    for (const PackForm form : {PackForm::kPacked, PackForm::kSamples, PackForm::kTokenBudget}) {
      PackSettings s{.tokens_per_pack = 512, .form = form, .balance = balance};
      if (form == PackForm::kSamples) s.samples_per_pack = 6;
      found.push_back(digest(s));
    }
    return found;
  };
  using Digests = std::vector<std::string>;
  EXPECT_EQ(digests(PackBalance::kFlops),
            (Digests{"be878d18d08d74f8a149ff87a37737c7", "d9f0d7977d27861baf2b766d9ac947c2",
                     "b2a312cf47d254cd8055ce646a1467f6"}));
  EXPECT_EQ(digests(PackBalance::kTokens),
            (Digests{"de6bf5c6a817f283d439a95ad3f04e55", "35dd0d7c4d95bb94614569bd57e3015d",
                     "d5c482e4bfc0f798aca7650c9de74fac"}));
  EXPECT_EQ(digests(PackBalance::kNone),
            (Digests{"c1cfde1cecfbe73f8d5f1a05a7a98f0a", "2ad704c740648456eb85d7eb490fb78f",
                     "f9040db4ca35188ffebd967813784737"}));
  EXPECT_EQ(digest({.tokens_per_pack = 512, .max_images = 6, .max_patches = 300}), "2918439e12de21f430f09a4077f3ce84");
  EXPECT_EQ(digest({.tokens_per_pack = 512, .align_samples_to = 16, .pad_to = 64}), "2c19ff11c81538c62213e126b1e242f6");
  EXPECT_EQ(digest({.tokens_per_pack = 512, .vision_uniform = VisionUniform::kImage}),
            "e02f25b581f1d8033f8d50a6d5c59606");
  EXPECT_EQ(digest({.tokens_per_pack = 512, .vision_uniform = VisionUniform::kImageAndVideo}),
            "f23cb57e037e2f514e758813c2172ae1");
}

}  // namespace
}  // namespace stoker

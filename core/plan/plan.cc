#include "plan/plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/hash.h"
#include "plan/padding.h"
#include "plan/placing.h"

namespace stoker {
namespace {

constexpr std::size_t kMaxSamples = std::size_t{1} << 24;  // bounds sums of loads, see place_packed.cc

Status cannot(const PlanSample& s) {
  return {Reason::kInternal,
          fmt::format("order index {} cannot be planned: {} tokens, {} images, {} patches, costs {} "
                      "and {}",
                      s.order_index, s.tokens, s.images + s.videos, s.patches, s.cost_language, s.cost_vision)};
}

Status check(std::span<const PlanSample> samples, const PackSettings& settings) {
  STOKER_CHECKED(check_pack_settings(settings));
  if (samples.size() > kMaxSamples) {
    return {Reason::kSettings, fmt::format("window_samples is {}; it must be at most {}", samples.size(), kMaxSamples)};
  }
  std::int64_t language = 0, vision = 0, dearest = 0, all_rows = 0;
  for (const PlanSample& s : samples) {
    if (!s.usable) continue;
    const bool is_sound = s.tokens >= 1 && s.patches >= 0 && s.images >= 0 && s.videos >= 0 && s.cost_language >= 0 &&
                          s.cost_vision >= 0 && check_fits(settings, s).ok();
    dearest = std::max(dearest, s.cost_language);
    if (!is_sound || __builtin_add_overflow(language, s.cost_language, &language) ||
        __builtin_add_overflow(vision, s.cost_vision, &vision) ||
        (settings.form != PackForm::kPacked &&
         __builtin_mul_overflow(dearest, static_cast<std::int64_t>(samples.size()), &all_rows))) {
      return cannot(s);
    }
  }
  return {};
}

Members place(std::span<const PlanSample> samples, const PackSettings& settings) {
  if (settings.balance == PackBalance::kNone) return place_in_order(samples, settings);
  return settings.form == PackForm::kPacked ? place_packed(samples, settings) : place_rows(samples, settings);
}

PackPlan summed(std::span<const PlanSample> samples, const PackSettings& settings, std::vector<std::uint32_t> members) {
  PackPlan pack;
  std::int64_t longest = 0, dearest = 0;
  for (const std::uint32_t i : members) {
    const PlanSample& s = samples[i];
    pack.tokens += s.tokens;
    pack.aligned_tokens += aligned_tokens(settings, s.tokens);
    pack.target_tokens += s.target_tokens;
    pack.patches += s.patches;
    pack.images += s.images;
    pack.videos += s.videos;
    pack.cost_language += s.cost_language;
    pack.cost_vision += s.cost_vision;
    longest = std::max(longest, s.tokens);
    dearest = std::max(dearest, s.cost_language);
  }
  if (settings.form != PackForm::kPacked) pack.cost_language = dearest * static_cast<std::int64_t>(members.size());
  pack.members = std::move(members);
  finish_pack(settings, longest, pack);
  return pack;
}

}  // namespace

Result<WindowPlan> plan_window(std::uint64_t window, std::span<const PlanSample> samples,
                               const PackSettings& settings) {
  STOKER_CHECKED(check(samples, settings));
  WindowPlan plan;
  plan.window = window;
  plan.n_samples = samples.size();
  for (const PlanSample& s : samples) {
    plan.n_usable += s.usable ? 1 : 0;
    plan.n_trailing_unusable = s.usable ? 0 : plan.n_trailing_unusable + 1;
  }
  for (std::vector<std::uint32_t>& members : place(samples, settings)) {
    plan.packs.push_back(summed(samples, settings, std::move(members)));
  }
  if (settings.balance == PackBalance::kNone) return plan;
  // One sequence in which neighbours cost alike; every other window runs the other way, so that the seams are alike
  // too.
  const bool is_rising = window % 2 != 0;
  std::sort(plan.packs.begin(), plan.packs.end(), [&](const PackPlan& a, const PackPlan& b) {
    if (a.cost() != b.cost()) return (a.cost() < b.cost()) == is_rising;
    return a.members.front() < b.members.front();
  });
  return plan;
}

std::string WindowPlan::digest() const {
  Digest digest;
  digest.add_int(static_cast<std::int64_t>(window));
  digest.add_int(static_cast<std::int64_t>(n_samples));
  digest.add_int(static_cast<std::int64_t>(packs.size()));
  for (const PackPlan& pack : packs) {
    digest.add_int(static_cast<std::int64_t>(pack.members.size()));
    digest.add(pack.members.data(), pack.members.size() * sizeof(std::uint32_t));
    for (const std::int64_t sum : {pack.tokens, pack.target_tokens, pack.patches, std::int64_t{pack.images},
                                   pack.cost_language, pack.cost_vision}) {
      digest.add_int(sum);
    }
    if (pack.total_tokens != pack.tokens) digest.add_int(pack.total_tokens);  // none of it at the default settings
    if (pack.needs_image_dummy || pack.needs_video_dummy) {
      digest.add_int((pack.needs_image_dummy ? 1 : 0) + (pack.needs_video_dummy ? 2 : 0));
    }
  }
  return digest.hex();
}

}  // namespace stoker

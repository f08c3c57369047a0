#include "plan/padding.h"

#include <fmt/format.h>

namespace stoker {
namespace {

Status wrong(std::string message) { return {Reason::kSettings, std::move(message)}; }

constexpr std::int64_t kMost = std::int64_t{1} << 31;

Status check_lengths(const PackSettings& s) {
  if (s.tokens_per_pack < 1 || s.tokens_per_pack > kMost) {
    return wrong(fmt::format("pack.tokens_per_pack is {}; it must be from 1 to 2^31", s.tokens_per_pack));
  }
  if (s.align_samples_to < 1 || s.align_samples_to > s.tokens_per_pack) {
    return wrong(fmt::format("pack.align_samples_to is {}; it must be from 1 to pack.tokens_per_pack, {}",
                             s.align_samples_to, s.tokens_per_pack));
  }
  if (s.pad_to < 1 || s.pad_to > s.tokens_per_pack) {
    return wrong(
        fmt::format("pack.pad_to is {}; it must be from 1 to pack.tokens_per_pack, {}", s.pad_to, s.tokens_per_pack));
  }
  if (s.pad_to > 1 && s.pad_to % s.align_samples_to != 0) {
    return wrong(
        fmt::format("pack.pad_to is {} tokens and no multiple of pack.align_samples_to, {}: the end of a pack "
                    "would not be aligned",
                    s.pad_to, s.align_samples_to));
  }
  return {};
}

}  // namespace

Status check_pack_settings(const PackSettings& s) {
  STOKER_CHECKED(check_lengths(s));
  if (s.max_images < 0 || s.max_patches < 0) {
    return wrong("pack.max_images and pack.max_patches must be positive, or 0 for no limit");
  }
  if (s.form == PackForm::kSamples && (s.samples_per_pack < 1 || s.samples_per_pack > (1 << 20))) {
    return wrong(fmt::format("pack.samples_per_pack is {}; it must be from 1 to 2^20", s.samples_per_pack));
  }
  if (s.form == PackForm::kTokenBudget && s.pad_to == s.tokens_per_pack && s.pad_to > 1) {
    return wrong("pack.pad_to: with pack.form: token_budget, rows as long as the budget would be alone in it");
  }
  const DummyTokens& dummy = s.dummy;
  if (dummy.text < 0 || dummy.image < 0 || dummy.video < 0 || dummy.image_and_video < 0) {
    return {Reason::kInternal, "a dummy segment of negative length"};
  }
  if (longest_sample(s) < 1) {
    return wrong(
        fmt::format("pack.tokens_per_pack is {}; with pack.align_samples_to {}, pack.pad_to {} and the {} "
                    "tokens kept for a dummy segment no sample fits",
                    s.tokens_per_pack, s.align_samples_to, s.pad_to, reserved_tokens(s)));
  }
  return {};
}

Status check_fits(const PackSettings& settings, const PlanSample& sample) {
  if (sample.tokens > longest_sample(settings)) {
    return {Reason::kSeqTooLong,
            fmt::format("length {}, limit {} (in tokens)", sample.tokens, longest_sample(settings))};
  }
  const auto n_images = std::int64_t{sample.images} + sample.videos;
  if (settings.max_images > 0 && n_images > settings.max_images) {
    return {Reason::kPackLimit,
            fmt::format("{} images and clips, pack.max_images is {}", n_images, settings.max_images)};
  }
  if (settings.max_patches > 0 && sample.patches > settings.max_patches) {
    return {Reason::kPackLimit,
            fmt::format("{} patches, pack.max_patches is {}", sample.patches, settings.max_patches)};
  }
  return {};
}

}  // namespace stoker

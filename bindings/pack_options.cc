#include "pack_options.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include <initializer_list>
#include <string>
#include <utility>

#include "bind.h"

namespace nb = nanobind;

namespace stoker {
namespace {

template <typename T>
T named(const std::string& key, const std::string& name, std::initializer_list<std::pair<const char*, T>> all) {
  for (const auto& [word, value] : all) {
    if (name == word) return value;
  }
  throw_status(Status(Reason::kSettings, fmt::format("pack.{}: there is no {}", key, name)));
}

void take(const std::string& key, nb::handle value, PackSettings& s) {
  const auto word = [&] { return nb::cast<std::string>(value); };
  if (key == "tokens_per_pack") {
    s.tokens_per_pack = nb::cast<std::int64_t>(value);
  } else if (key == "packs_per_step") {
    s.packs_per_step = nb::cast<std::int32_t>(value);
  } else if (key == "form") {
    s.form = named<PackForm>(
        key, word(),
        {{"packed", PackForm::kPacked}, {"samples", PackForm::kSamples}, {"token_budget", PackForm::kTokenBudget}});
  } else if (key == "samples_per_pack") {
    s.samples_per_pack = nb::cast<std::int32_t>(value);
  } else if (key == "balance") {
    s.balance = named<PackBalance>(
        key, word(), {{"flops", PackBalance::kFlops}, {"tokens", PackBalance::kTokens}, {"none", PackBalance::kNone}});
  } else if (key == "max_images") {
    s.max_images = nb::cast<std::int32_t>(value);
  } else if (key == "max_patches") {
    s.max_patches = nb::cast<std::int64_t>(value);
  } else if (key == "align_samples_to") {
    s.align_samples_to = nb::cast<std::int64_t>(value);
  } else if (key == "pad_to") {
    s.pad_to = nb::cast<std::int64_t>(value);
  } else if (key == "vision_uniform") {
    s.vision_uniform = named<VisionUniform>(key, word(),
                                            {{"none", VisionUniform::kNone},
                                             {"image", VisionUniform::kImage},
                                             {"image+video", VisionUniform::kImageAndVideo}});
  } else {
    throw_status(Status(Reason::kSettings, fmt::format("pack.{} is not known", key)));
  }
}

}  // namespace

PackSettings pack_settings_of(const nb::dict& values) {
  PackSettings settings;
  for (const auto& [key, value] : values) {
    take(nb::cast<std::string>(key), value, settings);
  }
  check_or_throw(check_pack_settings(settings));
  return settings;
}

}  // namespace stoker

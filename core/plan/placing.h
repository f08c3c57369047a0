#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/plan.h"

namespace stoker {

/// Packs as indices into a window's samples, ascending in each; every usable sample in exactly one of them, none empty,
/// each within the settings' limits.
using Members = std::vector<std::vector<std::uint32_t>>;

// All pure, for settings and samples that plan_window has checked.

/// kPacked: near-full and even in what `balance` names.
Members place_packed(std::span<const PlanSample> samples, const PackSettings& settings);

/// Padded forms: samples of about the same length together, vision cost even among such packs.
Members place_rows(std::span<const PlanSample> samples, const PackSettings& settings);

/// Any form: each sample, as it comes, into the last pack while it fits.
Members place_in_order(std::span<const PlanSample> samples, const PackSettings& settings);

/// Swaps samples so that fewer packs lack the vision that `vision_uniform` wants: a sample with it from a pack that has
/// two of them against one without, within all limits.
void spread_vision(std::span<const PlanSample> samples, const PackSettings& settings, Members& packs);

}  // namespace stoker

#include "engine/loader_state.h"

#include <algorithm>
#include <array>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace stoker {
namespace {

// Settings that change what becomes of a sample, but not which sample stands at which position. Of any other, a new one
// too, it must be supposed that it changes the order.
constexpr std::array<std::string_view, 10> kKeepTheOrder = {
    "box_text", "labels", "loss_weights", "media", "media_changed", "model", "pack", "reference", "rows", "user_code"};

std::string quoted(std::span<const std::string> names) { return fmt::format("`{}`", fmt::join(names, "`, `")); }

std::string what_it_means(const LoaderState& state, std::span<const std::string> changed) {
  const bool is_same_order = std::all_of(changed.begin(), changed.end(), [](const std::string& name) {
    return std::find(kKeepTheOrder.begin(), kKeepTheOrder.end(), name) != kKeepTheOrder.end();
  });
  return fmt::format("resumed at step {} with another {}: the run goes on at the beginning of window {}. {}",
                     state.cursor.step, quoted(changed), state.cursor.window,
                     is_same_order ? "Samples of this window that were trained on come again, none is left out"
                                   : "The order is another one, so samples that were trained on may come again in this "
                                     "epoch, and others be left out of it");
}

}  // namespace

Result<ResumePoint> resume_point(const LoaderState& state, const std::string& fingerprint,
                                 std::span<const std::string> accepted) {
  if (state.version != LoaderState::kVersion) {
    return Status(Reason::kState, fmt::format("the state has version {}, this build reads version {}", state.version,
                                              LoaderState::kVersion));
  }
  const std::vector<std::string> changed = differing_settings(state.fingerprint, fingerprint);
  if (changed.empty()) return ResumePoint{.cursor = state.cursor, .warning = {}};
  std::vector<std::string> refused;
  std::copy_if(changed.begin(), changed.end(), std::back_inserter(refused), [&](const std::string& name) {
    return std::find(accepted.begin(), accepted.end(), name) == accepted.end();
  });
  if (!refused.empty()) {
    return Status(Reason::kState,
                  fmt::format("the state was saved with another {}: the same batches could not come out. Resume with "
                              "the settings and data that it was saved with, or name what may differ in "
                              "accept_changed: the run then goes on at the beginning of the window that it stands in",
                              quoted(refused)));
  }
  ResumePoint point{.cursor = state.cursor, .warning = what_it_means(state, changed)};
  point.cursor.packs_delivered = 0;
  point.cursor.window_digest.clear();
  return point;
}

}  // namespace stoker

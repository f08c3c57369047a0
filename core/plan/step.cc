#include "plan/step.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

namespace stoker {
namespace {

// "1, 2, 4, 8": all divisors, or of many those around a number.
std::string divisors_near(std::int32_t n, std::int32_t number) {
  constexpr std::ptrdiff_t kMostShown = 12;
  std::vector<std::int32_t> divisors;
  for (std::int32_t d = 1; d <= n; ++d) {
    if (n % d == 0) divisors.push_back(d);
  }
  const auto n_all = static_cast<std::ptrdiff_t>(divisors.size());
  const std::ptrdiff_t at = std::lower_bound(divisors.begin(), divisors.end(), number) - divisors.begin();
  const std::ptrdiff_t first =
      std::clamp<std::ptrdiff_t>(at - kMostShown / 2, 0, std::max<std::ptrdiff_t>(0, n_all - kMostShown));
  const std::ptrdiff_t last = std::min(n_all, first + kMostShown);
  std::string shown = first > 0 ? "..., " : "";
  for (std::ptrdiff_t i = first; i < last; ++i)
    shown += fmt::format("{}{}", i > first ? ", " : "", divisors[static_cast<std::size_t>(i)]);
  return shown + (last < n_all ? ", ..." : "");
}

}  // namespace

Status check_dp_size(std::int32_t packs_per_step, std::int32_t dp_size) {
  if (packs_per_step <= 0) {
    return Status(Reason::kSettings, fmt::format("pack.packs_per_step is {}; it must be at least 1", packs_per_step));
  }
  if (dp_size <= 0 || packs_per_step % dp_size != 0) {
    return Status(Reason::kSettings,
                  fmt::format("dp_size {} does not divide pack.packs_per_step {}; every rank must get the same "
                              "number of packs per step. {} can be divided by {}",
                              dp_size, packs_per_step, packs_per_step, divisors_near(packs_per_step, dp_size)));
  }
  return {};
}

Status check_data_size(std::uint64_t rows_per_pass, std::int32_t packs_per_step, bool is_finite) {
  if (is_finite || rows_per_pass >= static_cast<std::uint64_t>(std::max(packs_per_step, 0))) return {};
  return Status(Reason::kDataTooSmall,
                fmt::format("{} rows for steps of {} packs; use fewer packs_per_step, more data, or epochs=1",
                            rows_per_pass, packs_per_step));
}

std::vector<PackPlace> StepPlan::places(std::int32_t dp_size) const {
  std::vector<PhaseCosts> costs(packs.size());
  for (std::size_t i = 0; i < packs.size(); ++i) {
    if (!packs[i].is_dummy()) costs[i] = {packs[i].plan().cost_language, packs[i].plan().cost_vision};
  }
  return assign_step(costs, dp_size);
}

std::vector<std::uint32_t> StepPlan::micro_batches_of(std::int32_t rank, std::int32_t dp_size) const {
  const std::vector<PackPlace> of_all = places(dp_size);
  std::vector<std::uint32_t> mine(packs.size() / static_cast<std::size_t>(dp_size));
  for (std::uint32_t i = 0; i < of_all.size(); ++i) {
    if (of_all[i].rank == rank) mine[static_cast<std::size_t>(of_all[i].micro_batch)] = i;
  }
  return mine;
}

StepPlanner::StepPlanner(std::int32_t packs_per_step, std::uint64_t rows_per_pass, PlanState start,
                         std::uint64_t windows_per_pass)
    : packs_per_step_(packs_per_step),
      rows_per_pass_(rows_per_pass),
      windows_per_pass_(windows_per_pass),
      at_(std::move(start)),
      next_window_(at_.window) {}

Status StepPlanner::add(std::shared_ptr<const WindowPlan> window) {
  if (is_finished_ || window->window != next_window_) {
    return Status(Reason::kInternal, fmt::format("window {} came where {} was due", window->window, next_window_));
  }
  std::uint64_t n_delivered = 0;
  if (window->window == at_.window && at_.packs_delivered > 0 && digested_ == nullptr) {  // the seek's first window
    n_delivered = at_.packs_delivered;
    if (window->digest() != at_.window_digest || n_delivered > window->packs.size()) {
      return Status(Reason::kState,
                    fmt::format("window {} plans other packs than when the state was saved", window->window));
    }
    digested_ = window;
  }
  ++next_window_;
  n_unusable_run_ = window->n_usable == 0 ? n_unusable_run_ + window->n_samples : window->n_trailing_unusable;
  if (n_unusable_run_ >= rows_per_pass_ && window->n_usable == 0) {
    return Status(Reason::kNoData,
                  fmt::format("{} rows in a row were unusable: a whole pass over the data", n_unusable_run_));
  }
  n_unusable_windows_ = window->n_usable == 0 ? n_unusable_windows_ + 1 : 0;
  if (n_unusable_windows_ >= windows_per_pass_) {
    return Status(Reason::kNoData, fmt::format("{} windows in a row held no usable row: a whole pass over the data",
                                               n_unusable_windows_));
  }
  for (std::uint64_t i = n_delivered; i < window->packs.size(); ++i) {
    ready_.push_back({window, static_cast<std::uint32_t>(i)});
  }
  return {};
}

std::optional<StepPlan> StepPlanner::next() {
  const auto n_wanted = static_cast<std::size_t>(packs_per_step_);
  if (ready_.empty() || (ready_.size() < n_wanted && !is_finished_)) return std::nullopt;
  StepPlan step;
  step.before = at_;
  step.packs.reserve(n_wanted);
  while (step.packs.size() < n_wanted && !ready_.empty()) {
    step.target_tokens += ready_.front().plan().target_tokens;
    step.packs.push_back(std::move(ready_.front()));
    ready_.pop_front();
  }
  const StepPack& last = step.packs.back();
  if (digested_ != last.window) {
    digested_ = last.window;
    at_.window_digest = digested_->digest();
  }
  at_.window = last.window->window;
  at_.packs_delivered = std::uint64_t{last.pack} + 1;
  ++at_.step;
  step.packs.resize(n_wanted);  // dummies
  step.after = at_;
  return step;
}

}  // namespace stoker

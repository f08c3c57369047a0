#include "engine/checker.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace stoker {
namespace {

constexpr std::size_t kMostShapes = 64;
constexpr const char* kOtherShapes = "(other shapes)";

std::string count_of(std::size_t n, const char* what) {
  if (n == 0) return fmt::format("no {}s", what);
  return n == 1 ? fmt::format("1 {}", what) : n <= 8 ? fmt::format("{} {}s", n, what) : fmt::format("9+ {}s", what);
}

std::string shape_of(const Sample& row, const RowNotes& notes) {
  const bool has_system = !row.turns.empty() && row.turns.front().role == Role::kSystem;
  std::size_t n_clips = 0;
  for (const MediaRef& media : row.media) n_clips += media.kind == MediaKind::kVideo ? 1 : 0;
  std::string shape = fmt::format("{}, {}, {}", name_of(notes.row_shape), count_of(row.media.size() - n_clips, "image"),
                                  count_of(row.turns.size(), "turn"));
  if (n_clips > 0) shape += ", " + count_of(n_clips, "clip");
  if (has_system) shape += ", system";
  if (!row.tools.empty()) shape += ", tools";
  return shape;
}

}  // namespace

/// What is kept of a row until its window is merged.
struct Checker::RowFacts {
  std::string shape;
};

Checker::Checker(LoaderSettings settings, CheckOptions options, const Clock& clock)
    : options_(std::move(options)), walk_(std::move(settings), clock) {}

Result<std::unique_ptr<Checker>> Checker::create(LoaderSettings settings, CheckOptions options, const Clock& clock) {
  std::unique_ptr<Checker> checker(new Checker(each_row_once(std::move(settings)), std::move(options), clock));
  Checker* const raw = checker.get();
  STOKER_CHECKED(checker->walk_.start("stoker-check", [raw](std::stop_token stop) { return raw->work(stop); }));
  return checker;
}

Status Checker::work(std::stop_token stop) {
  const std::uint64_t n_rows = *walk_.dataset().order().size();
  {
    MutexLock lock(mu_);
    report_.n_rows_in_all = n_rows;
  }
  const auto per_window = static_cast<std::uint64_t>(walk_.settings().output.window_samples);
  RejectedRowCounter rejected(options_.ledger, options_.n_examples);
  Mutex facts_mu;
  // Facts of the windows under way. A window's rows write to places of their own.
  std::map<std::uint64_t, std::vector<RowFacts>> facts;
  const auto facts_of = [&](std::uint64_t window) -> std::vector<RowFacts>& {
    MutexLock lock(facts_mu);
    std::vector<RowFacts>& rows = facts[window];
    rows.resize(per_window);
    return rows;
  };
  MeasureOptions options{.headers = [this](std::uint64_t row) { return headers_of(row); },
                         .on_row =
                             [&](std::uint64_t order_index, const Sample& row, const RowNotes& notes) {
                               facts_of(order_index / per_window)[order_index % per_window].shape =
                                   shape_of(row, notes);
                             },
                         .max_known_sizes = 65536};
  const auto visit = [&](const MeasuredWindow& window) -> Result<bool> {
    STOKER_CHECKED(merge(window, facts_of(window.window), rejected));
    MutexLock lock(facts_mu);
    facts.erase(window.window);
    return true;
  };
  return walk_.each_window(std::move(options), visit, std::move(stop));
}

HeaderReads Checker::headers_of(std::uint64_t row) const {
  if (!options_.n_media_rows) return HeaderReads::kAll;
  const std::uint64_t n = *walk_.dataset().order().size();
  const std::uint64_t wanted = std::min(*options_.n_media_rows, n);
  if (wanted == 0) return HeaderReads::kNone;
  // Every `stride`-th row from the first on: evenly spread, a little more than were asked for where it does not divide.
  return row % std::max<std::uint64_t>(n / wanted, 1) == 0 ? HeaderReads::kAll : HeaderReads::kNone;
}

void Checker::count_media(const MeasuredSample& sample, CheckReport& to) const {
  const bool is_read = headers_of(sample.order_index) == HeaderReads::kAll;
  for (std::size_t k = 0; k < sample.n_pictures(); ++k) {
    const MeasuredImage& picture = sample.picture(k);
    ++to.n_media;
    to.n_headers += is_read ? 1 : 0;
    if (picture.bad != Reason::kNone) {
      ++to.media_rejected[picture.bad];
    } else if (picture.upright == qwen_vl::SizePx{}) {
      ++to.n_unsized;
    } else {
      to.media_pixels.add(std::int64_t{picture.upright.height} * picture.upright.width);
      if (!picture.is_frame) to.media_tokens.add(picture.plan.n_tokens);
    }
  }
  for (const MeasuredClip& clip : sample.clips) {
    if (clip.plan.n_tokens > 0) to.media_tokens.add(clip.plan.n_tokens);
  }
}

Status Checker::merge(const MeasuredWindow& window, std::span<const RowFacts> facts, RejectedRowCounter& rejected) {
  CheckReport seen;
  for (std::size_t i = 0; i < window.samples.size(); ++i) {
    const MeasuredSample& sample = window.samples[i];
    ++seen.n_rows;
    if (!facts[i].shape.empty()) {
      ++seen.shapes[facts[i].shape];
      count_media(sample, seen);
    }
    if (!sample.bad.ok()) continue;
    bool is_length_known = true;
    for (const MeasuredImage& image : sample.images) {
      is_length_known = is_length_known && image.is_planned();
      seen.n_patches += image.plan.n_patches();
    }
    for (const MeasuredClip& clip : sample.clips) {
      is_length_known = is_length_known && clip.plan.n_tokens > 0;
      seen.n_patches += clip.plan.n_patches();
    }
    if (is_length_known) seen.tokens.add(sample.tokens);
    seen.text_tokens.add(sample.n_ids);
    seen.target_tokens.add(sample.n_trained);
  }
  STOKER_CHECKED(rejected.add(window, walk_.dataset()));

  MutexLock lock(mu_);
  report_.n_rows += seen.n_rows;
  report_.rejected = rejected.so_far();
  report_.n_media += seen.n_media;
  report_.n_headers += seen.n_headers;
  report_.n_unsized += seen.n_unsized;
  report_.n_patches += seen.n_patches;
  for (const auto& [reason, n] : seen.media_rejected) report_.media_rejected[reason] += n;
  for (const auto& [shape, n] : seen.shapes) {
    const bool has_room = report_.shapes.contains(shape) || report_.shapes.size() < kMostShapes;
    report_.shapes[has_room ? shape : kOtherShapes] += n;
  }
  report_.tokens.merge(seen.tokens);
  report_.text_tokens.merge(seen.text_tokens);
  report_.target_tokens.merge(seen.target_tokens);
  report_.media_pixels.merge(seen.media_pixels);
  report_.media_tokens.merge(seen.media_tokens);
  return {};
}

CheckReport Checker::report() const {
  CheckReport out;
  {
    MutexLock lock(mu_);
    out = report_;
  }
  out.elapsed_s = walk_.elapsed_s();
  return out;
}

}  // namespace stoker

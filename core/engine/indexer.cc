#include "engine/indexer.h"

#include <utility>

#include "pipeline/planner.h"
#include "plan/cost.h"

namespace stoker {
namespace {

constexpr std::int64_t kCostPerGflop = static_cast<std::int64_t>(1e9 / kFlopsPerCost);

bool is_length_known(const MeasuredSample& sample) {
  if (!sample.bad.ok() && sample.bad.reason() != Reason::kSeqTooLong) return false;
  for (const MeasuredImage& image : sample.images) {
    if (!image.is_planned()) return false;
  }
  for (const MeasuredClip& clip : sample.clips) {
    if (!clip.is_planned()) return false;
  }
  return true;
}

}  // namespace

Indexer::Indexer(LoaderSettings settings, IndexOptions options, const Clock& clock)
    : options_(std::move(options)), walk_(std::move(settings), clock) {}

Result<std::unique_ptr<Indexer>> Indexer::create(LoaderSettings settings, IndexOptions options, const Clock& clock) {
  std::unique_ptr<Indexer> indexer(new Indexer(each_row_once(std::move(settings)), std::move(options), clock));
  Indexer* const raw = indexer.get();
  STOKER_CHECKED(indexer->walk_.start("stoker-index", [raw](std::stop_token stop) { return raw->work(stop); }));
  return indexer;
}

Status Indexer::work(std::stop_token stop) {
  walk_.use_index(stop);
  {
    MutexLock lock(mu_);
    report_.n_rows_in_all = *walk_.dataset().order().size();
    report_.n_longer_than[walk_.settings().output.pack.tokens_per_pack] = 0;
    for (const std::int64_t length : options_.pack_lengths) report_.n_longer_than[length] = 0;
  }
  RejectedRowCounter rejected(options_.ledger, options_.n_examples);
  MeasureOptions measure{
      .headers = [this](std::uint64_t) { return options_.reads_headers ? HeaderReads::kAsNeeded : HeaderReads::kNone; },
      .looks_again = options_.reads_headers,
      .max_known_sizes = 65536};
  const auto visit = [&](const MeasuredWindow& window) -> Result<bool> {
    STOKER_CHECKED(rejected.add(window, walk_.dataset()));
    MutexLock lock(mu_);
    count(window);
    report_.rejected = rejected.so_far();
    return true;
  };
  return walk_.each_window(std::move(measure), visit, std::move(stop));
}

void Indexer::count(const MeasuredWindow& window) {
  const CostModel cost = walk_.model().cost().value_or(CostModel{});  // FLOPs, whatever planning takes
  const std::vector<PlanSample> planned = plan_samples(window, cost);
  for (std::size_t i = 0; i < window.samples.size(); ++i) {
    const MeasuredSample& sample = window.samples[i];
    ++report_.n_rows;
    report_.n_known += sample.from == LengthsFrom::kIndex ? 1 : 0;
    count_media(sample);
    if (!is_length_known(sample)) continue;
    ++report_.n_lengths;
    report_.tokens.add(sample.tokens);
    report_.target_tokens.add(planned[i].target_tokens);
    report_.images.add(static_cast<std::int64_t>(sample.images.size() + sample.clips.size()));
    for (auto& [length, n] : report_.n_longer_than) n += sample.tokens > length ? 1 : 0;
    if (!planned[i].usable) continue;
    if (planned[i].patches > 0) report_.patches.add(planned[i].patches);
    report_.cost.add((planned[i].cost_language + planned[i].cost_vision) / kCostPerGflop);
    report_.cost_language += planned[i].cost_language / kCostPerGflop;
    report_.cost_vision += planned[i].cost_vision / kCostPerGflop;
  }
}

void Indexer::count_media(const MeasuredSample& sample) {
  report_.n_images += sample.images.size();
  report_.n_clips += sample.clips.size();
  for (std::size_t k = 0; k < sample.n_pictures(); ++k) {
    const MeasuredImage& picture = sample.picture(k);
    if (picture.bad != Reason::kNone) {
      ++report_.media_rejected[picture.bad];
    } else if (picture.upright == qwen_vl::SizePx{}) {
      ++report_.n_unsized;
    } else {
      report_.image_pixels.add(std::int64_t{picture.upright.height} * picture.upright.width);
    }
  }
}

IndexReport Indexer::report() const {
  IndexReport out;
  {
    MutexLock lock(mu_);
    out = report_;
  }
  out.elapsed_s = walk_.elapsed_s();
  return out;
}

}  // namespace stoker

#include "engine/opened_run.h"

#include <fmt/format.h>

#include <utility>

#include "base/log.h"
#include "engine/run_fingerprint.h"
#include "pipeline/sample_steps.h"
#include "plan/padding.h"
#include "plan/step.h"

namespace stoker {
namespace {

peers::PixelFacts pixels_of(const qwen_vl::QwenVl& model) {
  const qwen_vl::ProcessorConfig& image = model.config();
  const qwen_vl::ClipConfig& clip = model.clip_config();
  return {.image_mean = image.mean,
          .image_std = image.std,
          .clip_mean = clip.mean,
          .clip_std = clip.std,
          .image_rescale = image.rescale,
          .clip_rescale = clip.rescale,
          .patch = image.patch,
          .merge = image.merge,
          .temporal_patch = image.temporal_patch};
}

}  // namespace

Status check_run_settings(const LoaderSettings& s) {
  if (s.output.data.empty()) return Status(Reason::kSettings, "data: no manifest is given");
  if (s.output.pack.tokens_per_pack < 16) return Status(Reason::kSettings, "pack.tokens_per_pack must be at least 16");
  STOKER_CHECKED(check_pack_settings(s.output.pack));
  if (s.output.window_samples < 1) return Status(Reason::kSettings, "window_samples must be at least 1");
  if (s.dp_rank < 0 || s.dp_rank >= s.dp_size) {
    return Status(Reason::kSettings, fmt::format("dp_rank {} is not in [0, dp_size = {})", s.dp_rank, s.dp_size));
  }
  if (s.speed.cpu_threads < 1 || s.speed.fetch_concurrency < 1 || s.speed.prefetch_steps < 0) {
    return Status(Reason::kSettings,
                  "speed: cpu_threads and fetch_concurrency must be at least 1, prefetch_steps at least 0");
  }
  if (s.peers.rank < 0 || s.peers.rank >= s.peers.count) {
    return Status(Reason::kSettings,
                  fmt::format("peer_rank {} is not in [0, peer_count = {})", s.peers.rank, s.peers.count));
  }
  return check_dp_size(s.output.pack.packs_per_step, s.dp_size);
}

Result<OpenedRun> OpenedRun::open(const LoaderSettings& settings, Fetcher& fetcher, const std::stop_token& stop,
                                  const std::function<void(std::string_view)>& say,
                                  const std::function<Status(const qwen_vl::QwenVl&)>& check) {
  say("reading the model's folder");
  STOKER_TRY(auto model, load_model(settings));
  STOKER_CHECKED(check(*model));
  if (!settings.output.cost && !model->cost()) {
    log(LogLevel::kInfo, fmt::format("{}/config.json does not say how large the model is: packs are balanced by the "
                                     "costs of Qwen3-VL-8B, unless pack.cost_file has others",
                                     settings.output.model));
  }
  STOKER_TRY(Dataset dataset, Dataset::open(settings, fetcher, stop, say));
  STOKER_CHECKED(check_data_size(dataset.rows_per_pass(), settings.output.pack.packs_per_step,
                                 settings.output.epochs.has_value()));
  std::string fingerprint = run_fingerprint(settings.output, dataset.fingerprint(), model->fingerprint(), model.get());
  const peers::PixelFacts pixels = pixels_of(*model);
  return OpenedRun{std::move(model), std::move(dataset), std::move(fingerprint), pixels};
}

Result<PlanState> resume_cursor(const LoaderState& state, const std::string& fingerprint,
                                std::span<const std::string> accepted, const Dataset* dataset) {
  STOKER_TRY(ResumePoint point, resume_point(state, fingerprint, accepted));
  if (dataset != nullptr && state.cursor.window >= dataset->n_windows()) {
    return Status(Reason::kState,
                  fmt::format("the state names window {}, past the end of the data", state.cursor.window));
  }
  if (!point.warning.empty()) log(LogLevel::kWarning, point.warning);
  return std::move(point.cursor);
}

}  // namespace stoker

#pragma once

#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>

#include "base/result.h"
#include "engine/loader_state.h"
#include "model/qwen_vl/qwen_vl.h"
#include "peers/messages.h"
#include "pipeline/dataset.h"
#include "pipeline/settings.h"
#include "source/source.h"

namespace stoker {

/// @return SETTINGS with a sentence that says what would fit.
Status check_run_settings(const LoaderSettings& settings);

/// A run's model and manifests, opened: what every process that plans or prepares for it has.
struct OpenedRun {
  std::shared_ptr<const qwen_vl::QwenVl> model;
  Dataset dataset;
  std::string fingerprint;
  peers::PixelFacts pixels;

  /// @param say    Gets a line now and then, from any of several threads.
  /// @param check  Of the model, before any data is opened. @return As load_model, `check` and Dataset::open;
  /// DATA_TOO_SMALL.
  static Result<OpenedRun> open(const LoaderSettings& settings, Fetcher& fetcher, const std::stop_token& stop,
                                const std::function<void(std::string_view)>& say,
                                const std::function<Status(const qwen_vl::QwenVl&)>& check);
};

/// Where a run goes on from a state; what accepting changed settings means goes to the log.
/// @param dataset  Null where it is not open. @return STATE, as resume_point, or for one past the end of the data.
Result<PlanState> resume_cursor(const LoaderState& state, const std::string& fingerprint,
                                std::span<const std::string> accepted, const Dataset* dataset);

}  // namespace stoker

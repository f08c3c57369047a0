#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "engine/data_walk.h"
#include "engine/rejected_rows.h"
#include "metric/log_histogram.h"
#include "pipeline/settings.h"
#include "plan/forecast.h"

namespace stoker {

/// How samples become packs, and packs go to ranks.
enum class PackPolicy : std::uint8_t {
  kAsSet,          ///< as a run with these settings does
  kBalanceFlops,   ///< as a run does with PackBalance::kFlops,
  kBalanceTokens,  ///< kTokens
  kBalanceNone,    ///< and kNone, where the settings say otherwise
  kPlacedInOrder,  ///< packs as set, but dealt as they come
  kLargestFirst,   ///< Baseline::kLargestFirst, kInOrder
  kFirstFit,       ///< Baseline::kFirstFit, kInOrder
  kConcatenated,   ///< packs filled as samples come, and dealt as they come: Baseline::kConcatenate, kInOrder
  kEqualCounts,    ///< Baseline::kEqualCounts, kInOrder
};
const char* name_of(PackPolicy policy);

struct ForecastOptions {
  std::vector<std::int32_t> dp_sizes = {};  ///< each must divide packs_per_step
  // The walk ends with whichever comes first, and with a finite order; without both it has no end.
  std::optional<std::int64_t> n_steps = {};
  std::optional<std::int64_t> n_epochs = {};  ///< whole ones, and at least one step
  bool reads_headers = false;                 ///< of media whose size neither the row nor the index says
  bool compares = false;                      ///< every policy, not only kAsSet
  std::size_t n_longest = 5;                  ///< samples that are named
};

/// A sample that is named because it is long.
struct LongSample {
  enum class Fate : std::uint8_t { kKept, kCut, kDropped };
  std::string manifest;
  std::uint64_t line = 0;
  std::int64_t tokens = 0;  ///< of a cut one: of what is left
  std::int64_t images = 0, clips = 0;
  Fate fate = Fate::kKept;
};

/// What the windows that were planned come to under one policy.
struct PackForecast {
  PackPolicy policy = PackPolicy::kAsSet;
  std::int64_t n_packs = 0, n_samples = 0, tokens = 0, target_tokens = 0, patches = 0, images = 0, clips = 0;
  std::int64_t padded_tokens = 0;   ///< `tokens`, alignment, pad tails and dummy segments together
  std::int64_t n_with_dummy = 0;    ///< packs that lack a vision call which vision_uniform promises
  std::int64_t n_empty = 0;         ///< packs that only complete a finite run's last step
  LogHistogram pack_tokens;         ///< of packs
  std::vector<RankForecast> ranks;  ///< (dp_sizes) of the steps
};

struct ForecastReport {
  std::uint64_t n_known = 0;              ///< positions whose lengths were in the index
  std::uint64_t n_positions = 0;          ///< of the order, walked
  std::uint64_t n_positions_at_most = 0;  ///< what the walk ends with, unless the steps are complete before
  std::uint64_t n_per_epoch = 0;          ///< positions of an epoch
  bool is_finite = false;
  std::int64_t n_steps = 0;      ///< so far
  RejectedRows rejected;         ///< of these positions
  std::int64_t n_cut = 0;        ///< samples that lost turns from their end
  std::int64_t n_over_long = 0;  ///< samples that are longer than a pack and are left out
  std::int64_t n_unsized = 0;    ///< samples with media of unknown size: counted without these
  std::int64_t n_unsized_media = 0;
  LogHistogram tokens;              ///< of usable samples
  std::vector<LongSample> longest;  ///< longest first
  std::vector<PackForecast> policies;
  double elapsed_s = 0;
};

/// Says what a run will be like before any pixel is read: walks the run's own order, plans it as the run will, and adds
/// up what its steps cost any numbers of ranks. Threads: one, except stop().
class Forecaster {
 public:
  /// Starts. @return SETTINGS for a dp_size that does not divide packs_per_step (its divisors are named); what opening
  /// and measuring find (MODEL_FOLDER, MANIFEST, DATA_TOO_SMALL ...) comes from wait_within().
  static Result<std::unique_ptr<Forecaster>> create(LoaderSettings settings, ForecastOptions options,
                                                    const Clock& clock = Clock::real());

  /// @return Whether all is done; what kept it from being done.
  Result<bool> wait_within(std::chrono::milliseconds timeout) { return walk_.wait_within(timeout); }
  ForecastReport report() const STOKER_EXCLUDES(mu_);
  /// What is going on before the first row, for people.
  std::string progress() const { return walk_.progress(); }
  /// Ends every thread, well below a second. Repeatable. Threads: any.
  void stop() { walk_.stop(); }

 private:
  class Planned;
  Forecaster(LoaderSettings settings, ForecastOptions options, const Clock& clock);
  Status work(std::stop_token stop) STOKER_EXCLUDES(mu_);
  void count(const MeasuredWindow& window) STOKER_EXCLUDES(mu_);
  void count_steps(const std::vector<Planned>& policies) STOKER_EXCLUDES(mu_);

  const ForecastOptions options_;

  mutable Mutex mu_;
  ForecastReport report_ STOKER_GUARDED_BY(mu_);

  DataWalk walk_;  // last: its threads end first
};

}  // namespace stoker

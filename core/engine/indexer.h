#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "engine/data_walk.h"
#include "engine/rejected_rows.h"
#include "metric/log_histogram.h"
#include "pipeline/settings.h"

namespace stoker {

struct IndexOptions {
  bool reads_headers = true;  ///< of media whose size the rows do not say
  std::string ledger = {};    ///< JSONL file that gets a line for every rejected row, made anew; empty: none
  int n_examples = 3;         ///< kept per code
  std::vector<std::int64_t> pack_lengths = {};  ///< for which over-long rows are counted, beside the settings' own
};

/// What was found. Rows are those seen so far; of rows that are over-long by the settings lengths count all the same.
struct IndexReport {
  std::uint64_t n_rows = 0, n_rows_in_all = 0;
  std::uint64_t n_known = 0;  ///< rows whose lengths were in the index already
  RejectedRows rejected;
  std::uint64_t n_images = 0, n_clips = 0;  ///< of rows that could be read
  std::uint64_t n_unsized = 0;              ///< pictures whose size is not known, frames of clips each
  std::map<Reason, std::uint64_t> media_rejected;
  std::uint64_t n_lengths = 0;                          ///< rows whose length is known; the histograms are of these
  LogHistogram tokens, target_tokens;                   ///< of a row
  LogHistogram patches;                                 ///< of a row that has any
  LogHistogram images;                                  ///< of a row: images and clips
  LogHistogram image_pixels;                            ///< of an image or a clip's frame, upright
  LogHistogram cost;                                    ///< of a row, in GFLOP (plan/cost.h)
  std::int64_t cost_language = 0, cost_vision = 0;      ///< in all, in GFLOP
  std::map<std::int64_t, std::uint64_t> n_longer_than;  ///< by pack_lengths: rows that would not fit
  double elapsed_s = 0;
};

/// Fills the index of a run ahead: line starts of every manifest, lengths of every text, size of every image. What is
/// in the index already is not done again, so a walk that was ended goes on where it was. Threads: one, except stop().
class Indexer {
 public:
  /// Starts. @return SETTINGS; MODEL_FOLDER and the like come from wait_within().
  static Result<std::unique_ptr<Indexer>> create(LoaderSettings settings, IndexOptions options,
                                                 const Clock& clock = Clock::real());

  /// @return Whether all is done; what kept it from being done (MANIFEST, OUTAGE, INDEX_DIR ...).
  Result<bool> wait_within(std::chrono::milliseconds timeout) { return walk_.wait_within(timeout); }
  IndexReport report() const STOKER_EXCLUDES(mu_);
  /// What is going on before the first row, for people.
  std::string progress() const { return walk_.progress(); }
  /// Ends every thread, well below a second. Repeatable. Threads: any.
  void stop() { walk_.stop(); }

 private:
  Indexer(LoaderSettings settings, IndexOptions options, const Clock& clock);
  Status work(std::stop_token stop) STOKER_EXCLUDES(mu_);
  void count(const MeasuredWindow& window) STOKER_REQUIRES(mu_);
  void count_media(const MeasuredSample& sample) STOKER_REQUIRES(mu_);

  const IndexOptions options_;

  mutable Mutex mu_;
  IndexReport report_ STOKER_GUARDED_BY(mu_);

  DataWalk walk_;  // last: its threads end first
};

}  // namespace stoker

#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>

#include "base/mutex.h"
#include "base/result.h"
#include "engine/data_walk.h"
#include "engine/rejected_rows.h"
#include "metric/log_histogram.h"
#include "pipeline/settings.h"

namespace stoker {

struct CheckOptions {
  /// Rows whose media's headers are read, evenly spread over all rows; absent: every row's. 0: none.
  std::optional<std::uint64_t> n_media_rows;
  std::string ledger;  ///< JSONL file that gets a line for every rejected row, made anew; empty: none
  int n_examples = 3;  ///< kept per code
};

/// What was found. Rows are those seen so far.
struct CheckReport {
  std::uint64_t n_rows = 0, n_rows_in_all = 0;
  RejectedRows rejected;
  std::map<std::string, std::uint64_t> shapes;     ///< what rows look like: "messages, 2 images, 3 turns, system"
  std::uint64_t n_media = 0;                       ///< mentions in rows that could be read
  std::uint64_t n_headers = 0;                     ///< of these, read
  std::uint64_t n_unsized = 0;                     ///< of these, neither read nor sized by their row
  std::map<Reason, std::uint64_t> media_rejected;  ///< media that cannot be used, each mention counted
  LogHistogram tokens;                             ///< of usable rows whose length is known
  LogHistogram text_tokens;                        ///< of usable rows, media as one token each
  LogHistogram target_tokens;                      ///< of usable rows
  LogHistogram media_pixels;                       ///< upright, of sized media
  LogHistogram media_tokens;                       ///< of sized media
  std::int64_t n_patches = 0;
  double elapsed_s = 0;
};

/// Walks every row of the settings' manifests once, as a loader would measure it, without decoding a pixel. Rows are
/// read in batches by the settings' threads; memory does not depend on their number (the manifest's index takes four
/// bytes a row, in a mapped file). Threads: one, except stop().
class Checker {
 public:
  /// Starts. @return SETTINGS; MODEL_FOLDER and the like come from wait_within().
  static Result<std::unique_ptr<Checker>> create(LoaderSettings settings, CheckOptions options,
                                                 const Clock& clock = Clock::real());

  /// @return Whether all is done; what kept it from being done (MANIFEST, OUTAGE ...).
  Result<bool> wait_within(std::chrono::milliseconds timeout) { return walk_.wait_within(timeout); }
  CheckReport report() const STOKER_EXCLUDES(mu_);
  /// What is going on before the first row, for people.
  std::string progress() const { return walk_.progress(); }
  /// Ends every thread, well below a second. Repeatable. Threads: any.
  void stop() { walk_.stop(); }

 private:
  struct RowFacts;
  Checker(LoaderSettings settings, CheckOptions options, const Clock& clock);
  Status work(std::stop_token stop);
  Status merge(const MeasuredWindow& window, std::span<const RowFacts> facts, RejectedRowCounter& rejected);
  HeaderReads headers_of(std::uint64_t row) const;
  void count_media(const MeasuredSample& sample, CheckReport& to) const;

  const CheckOptions options_;

  mutable Mutex mu_;
  CheckReport report_ STOKER_GUARDED_BY(mu_);

  DataWalk walk_;  // last: its threads end first
};

}  // namespace stoker

#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "exec/worker_pool.h"
#include "pipeline/ledger.h"
#include "pipeline/measurer.h"
#include "pipeline/settings.h"

namespace stoker {

/// Counts of whole numbers in buckets that grow by a quarter of an octave: constant memory, whatever comes.
class LogHistogram {
 public:
  void add(std::int64_t value);
  void merge(const LogHistogram& other);

  struct Bucket {
    std::int64_t begin = 0, end = 0;  ///< half-open
    std::int64_t n = 0;
  };
  /// Those that are not empty, ascending.
  std::vector<Bucket> buckets() const;
  std::int64_t n() const { return n_; }
  std::int64_t total() const { return total_; }
  std::int64_t least() const { return n_ == 0 ? 0 : least_; }
  std::int64_t most() const { return most_; }
  /// The end of the bucket in which that share of all values is reached, at most `most()`.
  std::int64_t quantile(double share) const;

 private:
  static constexpr std::size_t kBuckets = 4 * 63;
  static std::int64_t begin_of(std::size_t bucket);

  std::array<std::int64_t, kBuckets> counts_{};
  std::int64_t n_ = 0, total_ = 0, least_ = 0, most_ = 0;
};

struct CheckOptions {
  /// Rows whose media's headers are read, evenly spread over all rows; absent: every row's. 0: none.
  std::optional<std::uint64_t> n_media_rows;
  std::string ledger;  ///< JSONL file that gets a line for every rejected row, made anew; empty: none
  int n_examples = 3;  ///< kept per code
};

/// A row that a run would leave out.
struct RejectedRow {
  std::string manifest;
  std::uint64_t line = 0;
  std::uint64_t byte_offset = 0;
  std::string media;  ///< empty: the row itself is to blame
  std::string message;
};

/// What was found. Rows are those seen so far.
struct CheckReport {
  std::uint64_t n_rows = 0, n_rows_in_all = 0;
  std::uint64_t n_rejected = 0;
  std::map<Reason, std::uint64_t> rejected;             ///< rows by the reason that a ledger would name
  std::map<Reason, std::vector<RejectedRow>> examples;  ///< the first of each, in the order of the manifests
  std::map<std::string, std::uint64_t> shapes;          ///< what rows look like: "messages, 2 images, 3 turns, system"
  std::uint64_t n_media = 0;                            ///< mentions in rows that could be read
  std::uint64_t n_headers = 0;                          ///< of these, read
  std::uint64_t n_unsized = 0;                          ///< of these, neither read nor sized by their row
  std::map<Reason, std::uint64_t> media_rejected;       ///< media that cannot be used, each mention counted
  LogHistogram tokens;                                  ///< of usable rows whose length is known
  LogHistogram text_tokens;                             ///< of usable rows, media as one token each
  LogHistogram target_tokens;                           ///< of usable rows
  LogHistogram media_pixels;                            ///< upright, of sized media
  LogHistogram media_tokens;                            ///< of sized media
  std::int64_t n_patches = 0;
  double elapsed_s = 0;
};

/// Walks every row of the settings' manifests once, as a loader would measure it, without decoding a pixel. Rows are
/// read in batches by the settings' threads; memory does not depend on their number (the manifest's index takes four
/// bytes a row, in a mapped file). Threads: one, except stop().
class Checker {
 public:
  /// Starts. @return SETTINGS, MODEL_FOLDER and the like come from wait_within().
  static Result<std::unique_ptr<Checker>> create(LoaderSettings settings, CheckOptions options,
                                                 const Clock& clock = Clock::real());
  ~Checker() { stop(); }
  Checker(const Checker&) = delete;
  Checker& operator=(const Checker&) = delete;

  /// @return Whether all is done; what kept it from being done (MANIFEST, OUTAGE ...).
  Result<bool> wait_within(std::chrono::milliseconds timeout);
  CheckReport report() const STOKER_EXCLUDES(mu_);
  /// What is going on before the first row, for people.
  std::string progress() const STOKER_EXCLUDES(mu_);
  /// Ends every thread, well below a second. Repeatable. Threads: any.
  void stop();

 private:
  struct RowFacts;
  Checker(LoaderSettings settings, CheckOptions options, const Clock& clock);
  void run(std::stop_token stop);
  Status work(std::stop_token stop);
  Status merge(const MeasuredWindow& window, std::span<const RowFacts> facts);
  HeaderReads headers_of(std::uint64_t row) const;
  void count_media(const MeasuredSample& sample, CheckReport& to) const;

  const LoaderSettings settings_;
  const CheckOptions options_;
  const Clock& clock_;
  const Nanos began_;

  std::shared_ptr<const qwen_vl::QwenVl> model_;  // the walking threads' own, until they are joined
  std::optional<Dataset> dataset_;
  std::unique_ptr<Ledger> ledger_;

  Mutex fetcher_mu_;
  std::unique_ptr<Fetcher> fetcher_ STOKER_GUARDED_BY(fetcher_mu_);

  mutable Mutex mu_;
  std::condition_variable_any changed_;
  bool is_done_ STOKER_GUARDED_BY(mu_) = false;
  Status status_ STOKER_GUARDED_BY(mu_);
  std::string progress_ STOKER_GUARDED_BY(mu_);
  CheckReport report_ STOKER_GUARDED_BY(mu_);

  std::jthread thread_;  // last: joined first
};

}  // namespace stoker

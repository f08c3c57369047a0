#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>

#include "base/mutex.h"
#include "base/result.h"
#include "pipeline/dataset.h"
#include "pipeline/known_lengths.h"
#include "pipeline/measurer.h"
#include "pipeline/settings.h"

namespace stoker {

/// The settings with an order in which every row comes once, in the order of the manifests, however often it will come
/// in training, and windows of a size that fits such a walk.
LoaderSettings each_row_once(LoaderSettings settings);

/// A data set walked on threads of its own for someone who trains nothing: model and manifests are opened, then
/// positions of the order are measured window by window as a loader measures them, and handed on in order. Memory does
/// not depend on their number. Threads: one, except where it says otherwise.
class DataWalk {
 public:
  /// What is done with the open data, on the walk's own thread.
  using Work = std::function<Status(std::stop_token stop)>;
  /// Gets the windows in order, one at a time; false: enough.
  using Visit = std::function<Result<bool>(const MeasuredWindow& window)>;

  DataWalk(LoaderSettings settings, const Clock& clock);
  ~DataWalk() { stop(); }
  DataWalk(const DataWalk&) = delete;
  DataWalk& operator=(const DataWalk&) = delete;

  /// Opens model and manifests on a thread of that name, then does the work. Once. @return SETTINGS and the like; what
  /// the opening finds comes from wait_within().
  Status start(std::string thread_name, Work work);
  /// @return Whether all is done; what kept it from being done (MANIFEST, OUTAGE ...).
  Result<bool> wait_within(std::chrono::milliseconds timeout) STOKER_EXCLUDES(mu_);
  /// What is going on before the first window, for people. Threads: any.
  std::string progress() const STOKER_EXCLUDES(mu_);
  /// Since the start; of the whole once it is done. Threads: any.
  double elapsed_s() const STOKER_EXCLUDES(mu_);
  /// Ends every thread, well below a second. Repeatable. Threads: any.
  void stop();

  const LoaderSettings& settings() const { return settings_; }
  // For the work, once it runs:
  const Dataset& dataset() const { return *dataset_; }
  const qwen_vl::QwenVl& model() const { return *model_; }
  /// Opens the index of lengths: what it knows is not measured again by each_window, and what is learned is kept there.
  /// Once, before each_window. Blocks for the disk.
  void use_index(const std::stop_token& stop);
  /// Measures the order's windows from the first on, to the end of a finite order or until a visit has enough. Two are
  /// under way at a time, so that workers have rows while another window's last headers arrive. Afterwards the
  /// manifests are held against what was indexed. @return What ended it: of a visit, of measuring, STOPPED, MANIFEST.
  Status each_window(MeasureOptions options, const Visit& visit, std::stop_token stop);

 private:
  void run(const std::string& thread_name, const Work& work, std::stop_token stop);
  Status open(std::stop_token stop);
  Fetcher& fetcher() STOKER_EXCLUDES(fetcher_mu_);

  const LoaderSettings settings_;
  const Clock& clock_;
  const Nanos began_;

  std::shared_ptr<const qwen_vl::QwenVl> model_;  // the walking threads' own, until they are joined
  std::optional<Dataset> dataset_;
  std::unique_ptr<KnownLengths> known_;

  Mutex fetcher_mu_;
  std::unique_ptr<Fetcher> fetcher_ STOKER_GUARDED_BY(fetcher_mu_);

  mutable Mutex mu_;
  std::condition_variable_any changed_;
  bool is_done_ STOKER_GUARDED_BY(mu_) = false;
  Status status_ STOKER_GUARDED_BY(mu_);
  std::string progress_ STOKER_GUARDED_BY(mu_);
  double lasted_s_ STOKER_GUARDED_BY(mu_) = 0;

  std::jthread thread_;  // last: joined first
};

}  // namespace stoker

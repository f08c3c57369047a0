#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/hash.h"
#include "base/mutex.h"
#include "base/result.h"
#include "exec/worker_pool.h"
#include "manifest/row.h"
#include "metric/metric.h"
#include "model/qwen_vl/qwen_vl.h"
#include "pipeline/dataset.h"
#include "pipeline/header_size.h"
#include "pipeline/measured.h"
#include "pipeline/settings.h"
#include "source/source.h"

namespace stoker {

class KnownLengths;
struct PictureRef;  // pipeline/sample_steps.h

/// Which headers are read.
enum class HeaderReads : std::uint8_t {
  kAsNeeded,  ///< where the row's sizes are not trusted, and nothing is remembered
  kAll,       ///< all, once per mention; what the row says is compared
  kNone,      ///< none: sizes that the row does not say stay unknown
};

/// What a caller who is no loader wants of a Measurer.
struct MeasureOptions {
  /// By position of the order; absent: kAsNeeded for all.
  std::function<HeaderReads(std::uint64_t order_index)> headers = {};
  /// Sees every row that could be read, on a worker; before its images are measured.
  std::function<void(std::uint64_t order_index, const Sample& row, const RowNotes& notes)> on_row = {};
  /// Of small objects that came whole with their headers, so that they need not be read again.
  std::size_t max_whole_bytes = 0;
  /// Not empty: a header that would have to be read ends the run, SETTINGS, with these words.
  std::string headers_refused = {};
  /// False: texts are counted and let go, as if the lengths had come from elsewhere.
  bool keeps_text = true;
  /// What earlier runs learned is not read again, and what is learned here is kept there; null: this measurer remembers
  /// sizes for itself. With `on_row` every row is read all the same.
  KnownLengths* known = nullptr;
  /// Media that earlier runs found bad are looked at again, each once: somebody may have put them in place since.
  bool looks_again = false;
  std::size_t max_known_sizes = 1'000'000;  ///< remembered: about 80 bytes each
};

/// Finds out what planning needs to know of a window's samples, without pixels: rows are read, parsed and tokenised on
/// the workers; sizes come from the row, from what was measured before, or from the first bytes of the object.
///
/// Only proof makes a sample bad here. What may work later (an outage) fails the whole window, so that plans never
/// depend on luck.
class Measurer {
 public:
  Measurer(const LoaderSettings& settings, const Dataset& dataset, std::shared_ptr<const qwen_vl::QwenVl> model,
           Fetcher& fetcher, WorkerPool& workers, MeasureOptions options = {});

  /// Measures a window of the order. Blocks the calling thread; the work is done by others.
  /// @param priority  For workers and fetches: where the window stands in the plan.
  /// @return What ended the run (FETCH_*, OUTAGE, MANIFEST, STOPPED, INTERNAL), never a bad sample.
  Result<std::shared_ptr<MeasuredWindow>> measure(const OrderWindow& window, std::uint64_t priority,
                                                  std::stop_token stop);
  /// Measures some places of the order, such as one rank's share of a window: lengths_of makes of them what other ranks
  /// need, assemble() the window. @return As measure(); in the order of `places`.
  Result<std::vector<MeasuredSample>> measure_part(std::span<const OrderWindow::Place> places, std::uint64_t priority,
                                                   std::stop_token stop);
  /// As assemble_window: a window from what was measured here and what other ranks told.
  Result<std::shared_ptr<MeasuredWindow>> assemble(const OrderWindow& window, std::vector<MeasuredSample> own,
                                                   std::span<const SampleLengths> told) const;

  std::int64_t n_probes() const { return probes_.get(); }            ///< ranged header reads sent
  std::int64_t n_probe_bytes() const { return probe_bytes_.get(); }  ///< bytes they brought
  std::int64_t n_recalled() const { return recalled_.get(); }  ///< samples whose row was not read: the index knew them
  std::int64_t n_truncated() const { return truncated_.get(); }  ///< samples that lost turns from their end
  std::int64_t n_control_literals() const { return control_literals_.get(); }  ///< control tokens kept as text

 private:
  struct Known {
    qwen_vl::SizePx upright;
    std::uint64_t object_bytes = 0;
    std::uint64_t tag = 0;
  };
  struct Task;
  struct PictureAt {
    std::size_t sample = 0, picture = 0;
  };

  void measure_sample(const std::shared_ptr<Task>& task, std::size_t index);
  Status read_row(MeasuredSample& sample, std::vector<MediaRef>& media) const;
  /// A picture whose size stands in memory or in the index. @return Whether it did.
  bool is_to_look_again(const Hash128& key) STOKER_EXCLUDES(mu_);
  bool measure_known(const std::shared_ptr<Task>& task, std::size_t index, std::size_t image);
  Status finish_sample(Task& task, std::size_t index);
  void measure_image(const std::shared_ptr<Task>& task, std::size_t index, std::size_t image,
                     const PictureRef& picture);
  void fetch_header(std::shared_ptr<Task> task, std::size_t index, std::size_t image, Buffer have,
                    std::uint64_t want_end);
  void header_arrived(const std::shared_ptr<Task>& task, std::size_t index, std::size_t image, const Buffer& have,
                      Result<FetchedObject> got);
  /// Learns from a header how many bytes are asked for first, and keeps an object that is all here.
  void note_prefix(MeasuredSample& sample, MeasuredImage& image, Buffer prefix, std::uint64_t total_bytes,
                   bool is_one_read) STOKER_EXCLUDES(mu_);
  std::uint64_t first_read(const MeasuredSample& sample) const STOKER_EXCLUDES(mu_);
  /// Fetches the bytes behind the pixels in which an orientation may stand.
  void fetch_tail(const std::shared_ptr<Task>& task, std::size_t index, std::size_t image, const Probe& probed,
                  std::uint64_t object_bytes, std::string etag);
  void header_known(const std::shared_ptr<Task>& task, std::size_t index, std::size_t image, const ImageInfo& info,
                    std::uint64_t object_bytes, std::string_view etag);
  /// Reads a header, unless another mention of the object in this task does or did so: then its result counts here too.
  void read_once(const std::shared_ptr<Task>& task, std::size_t index, std::size_t image);
  /// What a header read gave, for all mentions that wait for it.
  void read_ended(const std::shared_ptr<Task>& task, std::size_t index, std::size_t image, const Result<Known>& got);
  Status apply_size(MeasuredImage& image, const Known& known, bool is_from_row) const;
  HeaderReads headers_of(const MeasuredSample& sample) const;
  void part_done(const std::shared_ptr<Task>& task, std::size_t index, std::int32_t image, Status status);
  void close_sample(Task& task, std::size_t index);
  static void failed(Task& task, Status status);
  std::optional<Known> known_size(const Hash128& key) const STOKER_EXCLUDES(mu_);
  void remember_size(const Hash128& key, const Known& known) STOKER_EXCLUDES(mu_);

  const LoaderSettings& settings_;
  const Dataset& dataset_;
  const std::shared_ptr<const qwen_vl::QwenVl> model_;
  Fetcher& fetcher_;
  WorkerPool& workers_;
  const MeasureOptions options_;

  Counter probes_;
  Counter probe_bytes_;
  Counter recalled_;
  Counter truncated_;
  Counter control_literals_;

  const std::shared_ptr<std::atomic<std::size_t>> whole_allowance_;

  mutable Mutex mu_;
  std::vector<HeaderSize> header_sizes_ STOKER_GUARDED_BY(mu_);  // by source
  std::unordered_set<Hash128> looked_again_ STOKER_GUARDED_BY(mu_);
  std::unordered_map<Hash128, Known> known_ STOKER_GUARDED_BY(mu_);  // bounded: emptied when full
};

}  // namespace stoker

#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "data/pack.h"
#include "mem/block.h"
#include "model/qwen_vl/qwen_vl.h"
#include "pipeline/pack_task.h"
#include "plan/plan.h"

namespace stoker {

/// The shape of a planned pack: its samples, its dummy segment if it needs one, and its tail.
PackShape shape_of(const PackTask& task, const PackSettings& settings, const qwen_vl::QwenVl& model);

/// One pack while it is being filled: parts (a sample's text, an image, a clip's frame) arrive in any order, each
/// writes its reserved place, and the one that comes last finishes the pack. Threads: parts may come from any number of
/// them.
class PackJob {
 public:
  using Done = std::function<void(ReadyPack)>;
  using Failed = std::function<void(Status)>;

  /// @param block   Large enough for shape_of(task).
  /// @param failed  Gets what ends the run (OUTAGE, FETCH_*, INTERNAL), perhaps more than once; the pack is never done
  /// then.
  PackJob(PackTask task, const PackSettings& settings, std::shared_ptr<const qwen_vl::QwenVl> model,
          std::shared_ptr<Block> block, Done done, Failed failed = {});

  const PackTask& task() const { return task_; }
  std::int64_t n_parts() const { return n_parts_; }
  /// Sample `i` was given up before: it has no parts.
  bool is_rejected(std::size_t i) const { return is_rejected_[i]; }

  /// Sample `i` with its text and URLs, before any part of it. Threads: one for each `i`.
  void take_completed(std::size_t i, std::shared_ptr<const MeasuredSample> sample) {
    task_.completed[i] = std::move(sample);
  }
  /// Writes the ids, labels, positions and grids of sample `i` and counts as its text part.
  void write_text(std::size_t i);
  /// Where image `k` of sample `i` goes: (n_patches, 3, p, p) uint8.
  std::uint8_t* patches_of(std::size_t i, std::size_t k);
  /// Where clip `c` of sample `i` goes: (n_patches, 3, t, p, p) uint8; its frames write apart from each other.
  std::uint8_t* clip_patches_of(std::size_t i, std::size_t c);
  /// Picture `k` (MeasuredSample::picture) of sample `i` is written, or why it never will be. Not for what ends the
  /// run.
  void picture_done(std::size_t i, std::size_t k, Status status);
  /// Finishes a pack that has no part.
  void finish_empty() { finish(); }
  /// The pack cannot be made, and the run not go on.
  void fail(Status status) const { failed_(std::move(status)); }
  /// Picture `k` of sample `i` is another than its lengths say: later runs are to measure it anew.
  void note_stale(std::size_t i, std::size_t k) STOKER_EXCLUDES(mu_);

 private:
  struct Bad {
    std::size_t picture = 0;  ///< of its sample
    LedgerEntry entry;
  };
  void part_done();
  void finish();
  /// Closes gaps and adds what is still missing at the end. @return the finished pack's shape
  PackShape complete() STOKER_REQUIRES(mu_);

  PackTask task_;
  const PackSettings settings_;
  const std::shared_ptr<const qwen_vl::QwenVl> model_;
  const std::shared_ptr<Block> block_;
  const Done done_;
  const Failed failed_;
  const PackShape planned_;
  const PackView view_;
  std::vector<SampleExtent> extents_;
  std::vector<std::int64_t> patch_begin_;       // (images of the pack)
  std::vector<std::int64_t> clip_patch_begin_;  // (clips of the pack)
  std::vector<bool> is_rejected_;               // (samples), like all above constant after construction
  std::int64_t n_parts_ = 0;
  std::atomic<std::int64_t> parts_left_;

  Mutex mu_;
  std::vector<Bad> bad_ STOKER_GUARDED_BY(mu_);
  std::vector<bool> is_kept_ STOKER_GUARDED_BY(mu_);
  std::vector<Hash128> stale_ STOKER_GUARDED_BY(mu_);
};

}  // namespace stoker

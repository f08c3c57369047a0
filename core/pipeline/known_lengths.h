#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "data/sample.h"
#include "index/lengths_index.h"
#include "media/image.h"
#include "model/qwen_vl/qwen_vl.h"
#include "pipeline/dataset.h"
#include "pipeline/measured.h"
#include "pipeline/settings.h"

namespace stoker {

/// The index as a run uses it: what of a window is known without reading rows and headers. Threads: any.
class KnownLengths {
 public:
  /// Opens <index_dir>/lengths; without an index_dir, and where it cannot be used, this process remembers for itself.
  /// Blocks for the disk. Everything must outlive this.
  KnownLengths(const LoaderSettings& settings, const Dataset& dataset, std::shared_ptr<const qwen_vl::QwenVl> model,
               const std::stop_token& stop);

  /// Fills a sample (whose `entry` is set) without its text, if its row and the sizes of all its pictures are known and
  /// nothing is wrong with it but its length. @return Whether; else the sample is as it was.
  bool recall(MeasuredSample& sample) const;
  std::optional<MediaFacts> media(const Hash128& key) const { return index_.media(key); }

  void keep_header(const Hash128& key, const ImageInfo& info, std::uint64_t object_bytes, std::uint64_t tag);
  /// A medium that is bad by its header. Kept only while no more samples are bad than the run goes on with: a disk that
  /// is not mounted makes every picture one that does not exist, and must not be remembered.
  void keep_bad(const Hash128& key, Status why) STOKER_EXCLUDES(mu_);
  /// A row of its own, as read from the manifest; its counts come with keep_text.
  TextFacts facts_of(const std::vector<MediaRef>& media, const MeasuredSample& sample) const;
  void keep_text(const OrderEntry& entry, const TextFacts& facts);
  /// A hash of what the boxes of a text depend on.
  static std::uint64_t sizes_of(const MeasuredSample& sample);

  /// What arrived is not what was planned with: later runs measure it anew.
  void forget_media(const Hash128& key) { index_.forget_media(key); }
  void forget_text(const OrderEntry& entry) { index_.forget_text(sources_[entry.source], entry.row); }

  /// So many samples were measured, so many are bad; writes what is to be kept. Blocks for the disk.
  void measured(std::uint64_t n_samples, std::uint64_t n_bad) STOKER_EXCLUDES(mu_);

  const LengthsIndex& index() const { return index_; }

 private:
  const LoaderSettings& settings_;
  const std::shared_ptr<const qwen_vl::QwenVl> model_;
  const std::vector<std::uint64_t> sources_;  // the number of each
  LengthsIndex index_;

  Mutex mu_;
  std::uint64_t n_samples_ STOKER_GUARDED_BY(mu_) = 0;
  std::uint64_t n_bad_ STOKER_GUARDED_BY(mu_) = 0;
  std::vector<std::pair<Hash128, Status>> bad_ STOKER_GUARDED_BY(mu_);  // not kept yet
};

/// The upright size that facts say.
qwen_vl::SizePx upright_size(const MediaFacts& facts, const ImageOptions& options);

}  // namespace stoker

#pragma once

#include <array>
#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "base/result.h"
#include "exec/worker_pool.h"
#include "media/image.h"
#include "mem/block.h"
#include "metric/metric.h"
#include "pipeline/dataset.h"
#include "pipeline/known_lengths.h"
#include "pipeline/pack_job.h"
#include "pipeline/settings.h"
#include "pipeline/snapshot.h"
#include "source/source.h"

namespace stoker {

/// The most that one pack's block can take: every token visual.
std::size_t largest_block(const PackSettings& pack, const qwen_vl::ProcessorConfig& config);

/// How a memory limit is divided. Blocks: the trainer holds all micro-batches of a step while it asks for one more, and
/// that one must fit beside one under way; a process that prepares for others holds none. The rest is for encoded
/// objects, from their request to their decoding: a quarter, less where blocks need it (a pack of clips takes up to
/// twice what one of pictures does).
struct MemoryShares {
  static constexpr std::size_t kLeastEncoded = std::size_t{8} << 20;

  std::size_t blocks = 0;   ///< bytes; 0: the limit is too small
  std::size_t encoded = 0;  ///< an object that is larger goes alone
  /// Beside the limit: what formats that do not come in strips hold while they are decoded, and as much again for what
  /// decoders keep for the next picture. A picture that takes more goes alone.
  std::size_t decoders = 0;

  /// Packs that a trainer holds while it asks for more.
  static std::int32_t held_by_trainer(const LoaderSettings& settings);
  static std::size_t least_blocks(std::int32_t n_held, std::size_t largest_block);
  static MemoryShares of(std::size_t limit_bytes, std::int32_t n_held, std::size_t largest_block);
};

/// @return MEMORY_LIMIT, with what would fit, if packs of pictures do not. @param n_held  0 for a worker of a cluster.
Status check_memory(const LoaderSettings& settings, std::int32_t n_held, const qwen_vl::ProcessorConfig& config);

/// Turns planned packs into finished ones: leases memory in plan order, fetches, decodes into the pack's block.
/// Threads: any; what is begun happens on workers and source threads.
class Preparer {
 public:
  /// @param known   Is told what turned out to be another than it says; may be null.
  /// @param n_held  Finished packs whose blocks others hold, see MemoryShares.
  Preparer(const LoaderSettings& settings, const Dataset& dataset, std::shared_ptr<const qwen_vl::QwenVl> model,
           KnownLengths* known, std::shared_ptr<BlockPool> blocks, Fetcher& fetcher, WorkerPool& workers,
           std::int32_t n_held, const Clock& clock);

  /// Waits, in plan order, for the pack's block, then starts its work; each object waits likewise for room of its own.
  /// `done` gets the finished pack, or `failed` what ends the run, see PackJob.
  /// @return BUDGET, MEMORY_LIMIT, or STOPPED; neither is called then.
  Status admit(PackTask task, PackJob::Done done, PackJob::Failed failed, std::stop_token stop);

  /// From now on no object gets room: before the fetcher is stopped.
  void close() {
    encoded_->close();
    decoders_->close();
  }

  const StageClock& admit_clock() const { return admit_; }
  /// Adds what preparing has counted. @param budget  Of the blocks.
  void tell(const MemoryBudget& budget, PipelineSnapshot& to) const;

 private:
  struct Worker {
    PatchDecoder decoder;
    std::vector<std::uint8_t> frame_patches;
  };
  /// Begins the work on a sample whose text is there.
  void start_sample(const std::shared_ptr<PackJob>& job, std::size_t i, std::stop_token stop);
  void ask_for_room(const std::shared_ptr<PackJob>& job, std::size_t i, std::size_t k, std::size_t n_bytes,
                    std::stop_token stop);
  void fetch_picture(const std::shared_ptr<PackJob>& job, std::size_t i, std::size_t k, Lease lease,
                     std::stop_token stop);
  /// Calls `decode` on a worker once there is room for what the picture's decoder must hold. The lease is given to
  /// decode_picture().
  void decode_later(const std::shared_ptr<PackJob>& job, std::size_t i, std::size_t k,
                    std::span<const std::byte> object, std::function<void(int worker, Lease& room)> decode);
  Status decode_picture(PackJob& job, std::size_t i, std::size_t k, std::span<const std::byte> object, int worker,
                        Lease& room);
  /// The pictures of sample `i` that stand in its row, which is parsed once for all of them.
  void read_row_pictures(const std::shared_ptr<PackJob>& job, std::size_t i, std::vector<std::size_t> inlined);
  /// @param held  room for the bytes that is not the buffer's own
  void picture_arrived(const std::shared_ptr<PackJob>& job, std::size_t i, std::size_t k, Result<Buffer> got,
                       bool is_changed, std::shared_ptr<Lease> held = nullptr);
  /// A picture that came whole with its header.
  void use_whole(const std::shared_ptr<PackJob>& job, std::size_t i, std::size_t k);
  /// A sound picture whose object changed. @return What ChangedMedia wants.
  Status note_changed(const std::string& url);
  void count_notes(ImageNotes notes, const std::string& url);
  /// Later runs measure an object anew that is not what it was planned with.
  void note_stale(PackJob& job, std::size_t i, std::size_t k, bool is_other, const Status& status);
  Status check_block(std::size_t n_bytes);

  const LoaderSettings& settings_;
  const Dataset& dataset_;
  const std::shared_ptr<const qwen_vl::QwenVl> model_;
  KnownLengths* const known_;
  const std::shared_ptr<BlockPool> blocks_;
  const std::int32_t n_held_;
  const MemoryShares shares_;
  const std::shared_ptr<MemoryBudget> encoded_;
  const std::shared_ptr<MemoryBudget> decoders_;  // what whole pictures take while they are decoded
  Fetcher& fetcher_;
  WorkerPool& workers_;
  const Clock& clock_;
  StageClock admit_;
  Counter decoded_pixels_;
  Counter changed_;
  std::array<Counter, kImageNoteCount> image_notes_;
  const std::size_t largest_block_;  // of images only
  std::vector<Worker> own_;          // one per worker
};

}  // namespace stoker

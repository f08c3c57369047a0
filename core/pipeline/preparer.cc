#include "pipeline/preparer.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "base/log.h"
#include "base/mutex.h"
#include "pipeline/lengths_steps.h"
#include "pipeline/sample_steps.h"
#include "plan/padding.h"

namespace stoker {

namespace {

/// What an object will take, before its size is known: half a byte per pixel is a JPEG of very high quality.
std::size_t expected_bytes(const MeasuredImage& image) {
  if (image.object_bytes > 0) return image.object_bytes;
  return static_cast<std::size_t>(image.upright.height) * static_cast<std::size_t>(image.upright.width) / 2 + 65536;
}

std::string held_words(std::int32_t n_held) {
  if (n_held == 0) return "a worker makes one pack while another is handed over";
  return fmt::format("a trainer holds the {} micro-batches of a step while it asks for more", n_held);
}

std::string least_words(std::int32_t n_held, std::size_t needed) {
  if (n_held == 0) return fmt::format("ray.worker_memory must be at least {} MB", (needed >> 20) + 1);
  return fmt::format("speed.memory_limit must be at least {} MB for this rank", (needed >> 20) + 1);
}

/// The room of one object, from before its request until its buffer has it. Threads: any.
class ReservedRoom {
 public:
  ReservedRoom(std::shared_ptr<MemoryBudget> budget, Lease lease)
      : budget_(std::move(budget)), lease_(std::move(lease)) {}

  /// For an answer of `n_bytes`: what was reserved, and what it lacks if that is free.
  std::optional<Lease> take(std::size_t n_bytes) STOKER_EXCLUDES(mu_) {
    Lease rest;  // given back after the lock: others are called then
    MutexLock lock(mu_);
    if (lease_.bytes() < n_bytes) {
      std::optional<Lease> more = budget_->try_acquire(n_bytes - lease_.bytes());
      if (!more) {
        lacking_ = std::max(lacking_, n_bytes);
        return std::nullopt;
      }
      lease_.add(*std::move(more));
    }
    Lease taken;
    std::tie(taken, rest) = std::exchange(lease_, Lease()).split(n_bytes);
    return taken;
  }

  /// Gives back what nobody took. @return the size for which there was no room, or 0
  std::size_t end() STOKER_EXCLUDES(mu_) {
    Lease rest;
    MutexLock lock(mu_);
    rest = std::move(lease_);
    return lacking_;
  }

 private:
  const std::shared_ptr<MemoryBudget> budget_;
  Mutex mu_;
  Lease lease_ STOKER_GUARDED_BY(mu_);
  std::size_t lacking_ STOKER_GUARDED_BY(mu_) = 0;
};

}  // namespace

std::int32_t MemoryShares::held_by_trainer(const LoaderSettings& settings) {
  return settings.output.pack.packs_per_step / settings.dp_size;
}

std::size_t MemoryShares::least_blocks(std::int32_t n_held, std::size_t largest_block) {
  return (static_cast<std::size_t>(n_held) + 2) * largest_block;
}

MemoryShares MemoryShares::of(std::size_t limit_bytes, std::int32_t n_held, std::size_t largest_block) {
  const std::size_t clips = std::min(limit_bytes, 2 * least_blocks(n_held, largest_block));
  const std::size_t encoded = std::max(kLeastEncoded, std::min(limit_bytes / 4, limit_bytes - clips));
  return {.blocks = limit_bytes - std::min(limit_bytes, encoded), .encoded = encoded, .decoders = limit_bytes / 8};
}

Status check_memory(const LoaderSettings& settings, std::int32_t n_held, const qwen_vl::ProcessorConfig& config) {
  const std::size_t block = largest_block(settings.output.pack, config);
  const std::size_t needed = MemoryShares::least_blocks(n_held, block) + MemoryShares::kLeastEncoded;
  if (needed <= settings.speed.memory_limit_bytes) return {};
  return Status(Reason::kMemoryLimit,
                fmt::format("{}, and a pack of {} tokens takes up to {} MB: {}, it is {} MB", held_words(n_held),
                            settings.output.pack.tokens_per_pack, block >> 20, least_words(n_held, needed),
                            settings.speed.memory_limit_bytes >> 20));
}

std::size_t largest_block(const PackSettings& pack, const qwen_vl::ProcessorConfig& config) {
  // Rows of samples are as many as the settings say, and one more for a dummy.
  const std::int64_t n = pack.form == PackForm::kSamples ? pack.tokens_per_pack * pack.samples_per_pack +
                                                               aligned_tokens(pack, dummy_tokens(pack, true, true))
                                                         : pack.tokens_per_pack;
  const std::int64_t merged = std::int64_t{config.merge} * config.merge;
  const std::int64_t most_patches = pack.max_patches > 0 ? pack.max_patches + merged : n * merged;  // and a dummy's
  const PackShape shape{.tokens = n,
                        .samples = n,
                        .images = n,
                        .patches = std::min(n * merged, most_patches),
                        .has_padded_samples = pack.align_samples_to > 1,
                        .patch = config.patch};
  return BlockPool::rounded(PackLayout(shape).n_bytes);
}

Preparer::Preparer(const LoaderSettings& settings, const Dataset& dataset, std::shared_ptr<const qwen_vl::QwenVl> model,
                   KnownLengths* known, std::shared_ptr<BlockPool> blocks, Fetcher& fetcher, WorkerPool& workers,
                   std::int32_t n_held, const Clock& clock)
    : settings_(settings),
      dataset_(dataset),
      model_(std::move(model)),
      known_(known),
      blocks_(std::move(blocks)),
      n_held_(n_held),
      shares_(MemoryShares::of(settings.speed.memory_limit_bytes, n_held,
                               largest_block(settings.output.pack, model_->config()))),
      encoded_(std::make_shared<MemoryBudget>(shares_.encoded)),
      decoders_(std::make_shared<MemoryBudget>(shares_.decoders)),
      fetcher_(fetcher),
      workers_(workers),
      clock_(clock),
      largest_block_(largest_block(settings.output.pack, model_->config())),
      own_(static_cast<std::size_t>(workers.n_threads())) {}

Status Preparer::check_block(std::size_t n_bytes) {
  // Frames are not repeated in time as pictures are, so a pack of clips takes up to temporal_patch times the bytes that
  // were counted with before any row was read.
  const std::size_t needed = MemoryShares::least_blocks(n_held_, std::max(largest_block_, BlockPool::rounded(n_bytes)));
  if (needed <= shares_.blocks) return {};
  return Status(Reason::kMemoryLimit,
                fmt::format("{}, and a pack with clips takes {} MB: {}, it is {} MB", held_words(n_held_),
                            n_bytes >> 20, least_words(n_held_, needed + MemoryShares::kLeastEncoded),
                            settings_.speed.memory_limit_bytes >> 20));
}

Status Preparer::admit(PackTask task, PackJob::Done done, PackJob::Failed failed, std::stop_token stop) {
  const std::size_t n_bytes = PackLayout(shape_of(task, settings_.output.pack, *model_)).n_bytes;
  STOKER_CHECKED(check_block(n_bytes));
  const PlanPosition at{.pack = task.sequence};
  auto block = [&] {
    const Timed waiting(admit_.wait_out_ns, clock_);
    return blocks_->acquire(n_bytes, at, stop);
  }();
  if (!block.ok()) return std::move(block).status();
  const Timed busy(admit_.busy_ns, clock_);
  admit_.items.add(1);
  auto job = std::make_shared<PackJob>(std::move(task), settings_.output.pack, model_, std::move(block).value(),
                                       std::move(done), std::move(failed));
  const std::uint64_t priority = job->task().priority;
  if (job->n_parts() == 0) {
    workers_.submit(priority, [job](int) { job->finish_empty(); });
    return {};
  }
  // Everything is read off the task before its last part can finish the job.
  const std::size_t n_samples = job->task().members.size();
  for (std::size_t i = 0; i < n_samples; ++i) {
    if (job->is_rejected(i)) continue;
    if (job->task().sample(i).has_text) {
      start_sample(job, i, stop);
      continue;
    }
    workers_.submit(priority, [this, job, i, stop](int) {
      auto completed = complete_sample(settings_, dataset_, *model_, job->task().sample(i));
      if (!completed.ok()) {
        const bool is_damage = completed.status().reason() == Reason::kIndexDir;
        if (is_damage && known_ != nullptr) known_->forget_text(job->task().sample(i).entry);
        return job->fail(std::move(completed).status());
      }
      job->take_completed(i, std::make_shared<const MeasuredSample>(std::move(completed).value()));
      start_sample(job, i, stop);
    });
  }
  return {};
}

void Preparer::start_sample(const std::shared_ptr<PackJob>& job, std::size_t i, std::stop_token stop) {
  const MeasuredSample& sample = job->task().sample(i);
  std::vector<std::size_t> inlined;
  for (std::size_t k = 0; k < sample.n_pictures(); ++k) {
    if (sample.picture(k).is_inline) {
      inlined.push_back(k);
    } else if (sample.picture(k).whole) {
      use_whole(job, i, k);
    } else {
      ask_for_room(job, i, k, expected_bytes(sample.picture(k)), stop);
    }
  }
  if (!inlined.empty()) read_row_pictures(job, i, std::move(inlined));
  workers_.submit(job->task().priority, [job, i](int) { job->write_text(i); });
}

void Preparer::ask_for_room(const std::shared_ptr<PackJob>& job, std::size_t i, std::size_t k, std::size_t n_bytes,
                            std::stop_token stop) {
  encoded_->acquire_later(n_bytes, {.pack = job->task().sequence},
                          [this, job, i, k, stop](Lease lease) { fetch_picture(job, i, k, std::move(lease), stop); });
}

void Preparer::fetch_picture(const std::shared_ptr<PackJob>& job, std::size_t i, std::size_t k, Lease lease,
                             std::stop_token stop) {
  auto room = std::make_shared<ReservedRoom>(encoded_, std::move(lease));
  FetchRequest request{.url = job->task().sample(i).picture(k).url,
                       .priority = job->task().priority,
                       .if_match = "",
                       .stop = stop,
                       .is_media = true,
                       .lease_for = [room](std::size_t n_bytes) { return room->take(n_bytes); }};
  fetcher_.submit(std::move(request), [this, job, i, k, room, stop](Result<FetchedObject> got) {
    if (const std::size_t lacking = room->end(); !got.ok() && got.status().code() == Code::kExhausted && lacking > 0) {
      return ask_for_room(job, i, k, lacking, stop);  // larger than expected: again, with its true size
    }
    const bool is_changed = got.ok() && has_changed(job->task().sample(i).picture(k), got->etag);
    picture_arrived(job, i, k, got.ok() ? Result<Buffer>(std::move(got->bytes)) : std::move(got).status(), is_changed);
  });
}

void Preparer::read_row_pictures(const std::shared_ptr<PackJob>& job, std::size_t i, std::vector<std::size_t> inlined) {
  std::size_t n_bytes = 0;
  for (const std::size_t k : inlined) n_bytes += expected_bytes(job->task().sample(i).picture(k));
  encoded_->acquire_later(n_bytes, {.pack = job->task().sequence}, [this, job, i, inlined](Lease lease) {
    auto held = std::make_shared<Lease>(std::move(lease));
    workers_.submit(job->task().priority, [this, job, i, inlined, held](int) {
      auto objects = read_inline(dataset_, settings_.output, job->task().sample(i).entry, inlined);
      for (std::size_t n = 0; n < inlined.size(); ++n) {
        picture_arrived(job, i, inlined[n], objects.ok() ? std::move((*objects)[n]) : objects.status(), false, held);
      }
    });
  });
}

void Preparer::picture_arrived(const std::shared_ptr<PackJob>& job, std::size_t i, std::size_t k, Result<Buffer> got,
                               bool is_changed, std::shared_ptr<Lease> held) {
  if (!got.ok()) {
    Status status = std::move(got).status();
    if (status.code() != Code::kBadSample) return job->fail(std::move(status));
    note_stale(*job, i, k, status.reason() == Reason::kMediaNotFound, status);
    return job->picture_done(i, k, std::move(status));
  }
  auto object = std::make_shared<Buffer>(std::move(got).value());
  const std::span<const std::byte> bytes = object->bytes();
  auto decode = [this, job, i, k, object, is_changed, held = std::move(held)](int worker, Lease& room) {
    Status status = decode_picture(*job, i, k, object->bytes(), worker, room);
    note_stale(*job, i, k, is_changed, status);
    if (is_changed && status.ok()) status = note_changed(job->task().sample(i).picture(k).url);
    if (!status.ok() && status.code() != Code::kBadSample) return job->fail(std::move(status));
    *object = Buffer();  // before the pack can be delivered: who takes it finds its memory given back
    job->picture_done(i, k, std::move(status));
  };
  decode_later(job, i, k, bytes, std::move(decode));
}

void Preparer::use_whole(const std::shared_ptr<PackJob>& job, std::size_t i, std::size_t k) {
  const std::span<const std::byte> bytes = job->task().sample(i).picture(k).whole->bytes.bytes();
  decode_later(job, i, k, bytes, [this, job, i, k, bytes](int worker, Lease& room) {
    Status status = decode_picture(*job, i, k, bytes, worker, room);
    if (!status.ok() && status.code() != Code::kBadSample) return job->fail(std::move(status));
    job->picture_done(i, k, std::move(status));
  });
}

void Preparer::decode_later(const std::shared_ptr<PackJob>& job, std::size_t i, std::size_t k,
                            std::span<const std::byte> object, std::function<void(int worker, Lease& room)> decode) {
  const std::uint64_t priority = job->task().priority;
  const bool is_frame = k >= job->task().sample(i).images.size();
  const std::size_t n_bytes = decoder_bytes(settings_.output, *model_, is_frame, object);
  if (n_bytes <= shares_.decoders / own_.size()) {  // which the worker's decoder may keep
    return workers_.submit(priority, [decode = std::move(decode)](int worker) {
      Lease none;
      decode(worker, none);
    });
  }
  // Whoever has room needs nothing else to come to its end, so no order of grants can hang.
  decoders_->acquire_later(
      n_bytes, {.pack = job->task().sequence}, [this, priority, decode = std::move(decode)](Lease lease) {
        workers_.submit(priority, [decode, room = std::make_shared<Lease>(std::move(lease))](int worker) {
          decode(worker, *room);
        });
      });
}

Status Preparer::decode_picture(PackJob& job, std::size_t i, std::size_t k, std::span<const std::byte> object,
                                int worker, Lease& room) {
  const MeasuredSample& sample = job.task().sample(i);
  const MeasuredImage& planned = sample.picture(k);
  decoded_pixels_.add(std::int64_t{planned.upright.height} * planned.upright.width);
  Worker& own = own_[static_cast<std::size_t>(worker)];
  Status status;
  if (k < sample.images.size()) {
    status = decode_measured(settings_.output, *model_, planned, object, own.decoder, job.patches_of(i, k));
  } else {
    std::size_t frame = k - sample.images.size();
    std::size_t clip = 0;
    while (frame >= sample.clips[clip].frames.size()) frame -= sample.clips[clip++].frames.size();
    status = decode_frame(settings_.output, *model_, sample.clips[clip], frame, object, own.decoder, own.frame_patches,
                          job.clip_patches_of(i, clip));
  }
  if (status.ok() && !own.decoder.notes().is_empty()) count_notes(own.decoder.notes(), planned.url);
  if (room.bytes() > 0) {
    own = Worker();  // it would keep the memory
    room.release();
  }
  return status;
}

void Preparer::note_stale(PackJob& job, std::size_t i, std::size_t k, bool is_other, const Status& status) {
  const MeasuredImage& planned = job.task().sample(i).picture(k);
  if (planned.is_size_from_row || !(is_other || status.reason() == Reason::kMediaSizeMismatch)) return;
  job.note_stale(i, k);
  if (known_ != nullptr) known_->forget_media(planned.key);
}

Status Preparer::note_changed(const std::string& url) {
  constexpr std::int64_t kMostLogged = 3;
  changed_.add(1);
  if (settings_.output.changed_media != ChangedMedia::kAccept) {
    return {Reason::kMediaChanged,
            "the object is not the one whose header was read (its tag differs), though of the same size"};
  }
  if (changed_.get() <= kMostLogged) {
    log(LogLevel::kWarning,
        fmt::format("{}: the object changed after its header was read; its size is the same, so it is used "
                    "(media.changed; counted in the report)",
                    url));
  }
  return {};
}

void Preparer::count_notes(ImageNotes notes, const std::string& url) {
  constexpr std::int64_t kMostLogged = 3;
  for (std::size_t n = 0; n < kImageNoteCount; ++n) {
    if (!notes.has(static_cast<ImageNote>(n))) continue;
    image_notes_[n].add(1);
    if (image_notes_[n].get() <= kMostLogged) {
      log(LogLevel::kInfo, fmt::format("{}: {} (used all the same; counted in the report)", url, kImageNoteNames[n]));
    }
  }
}

void Preparer::tell(const MemoryBudget& budget, PipelineSnapshot& to) const {
  to.admit_busy_s = to_seconds(Nanos(admit_.busy_ns.get()));
  to.admit_wait_memory_s = to_seconds(Nanos(admit_.wait_out_ns.get()));
  to.packs_admitted = admit_.items.get();
  to.decoded_megapixels = static_cast<double>(decoded_pixels_.get()) * 1e-6;
  for (std::size_t n = 0; n < image_notes_.size(); ++n) to.image_notes[n] = image_notes_[n].get();
  to.changed_media = changed_.get();
  to.memory_limit_bytes = budget.limit_bytes() + encoded_->limit_bytes();
  to.memory_in_use_bytes = budget.in_use_bytes() + encoded_->in_use_bytes();
  to.memory_peak_bytes = budget.peak_bytes() + encoded_->peak_bytes();
  to.encoded_limit_bytes = encoded_->limit_bytes();
  to.encoded_in_use_bytes = encoded_->in_use_bytes();
  to.encoded_peak_bytes = encoded_->peak_bytes();
  to.decoders_limit_bytes = decoders_->limit_bytes();
  to.decoders_peak_bytes = decoders_->peak_bytes();
  to.blocks_mapped = blocks_->n_mapped();
}

}  // namespace stoker

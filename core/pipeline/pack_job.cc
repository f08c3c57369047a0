#include "pipeline/pack_job.h"

#include <algorithm>
#include <utility>

#include "plan/padding.h"
#include "source/url.h"

namespace stoker {

namespace {

/// What a segment of a pack takes: its tokens rounded up.
PackShape aligned(PackShape segment, const PackSettings& settings) {
  segment.tokens = aligned_tokens(settings, segment.tokens);
  return segment;
}

void add(PackShape& sum, const PackShape& other) {
  sum.tokens += other.tokens;
  sum.samples += other.samples;
  sum.images += other.images;
  sum.patches += other.patches;
  sum.clips += other.clips;
  sum.clip_patches += other.clip_patches;
}

/// What the samples of a pack take.
PackShape shape_of_samples(const PackTask& task, const PackSettings& settings, const qwen_vl::QwenVl& model) {
  PackShape shape = model.empty_shape();
  shape.has_padded_samples = settings.align_samples_to > 1;
  shape.has_fixed_width = settings.form == PackForm::kPacked && settings.pad_to > 1;
  shape.samples = static_cast<std::int64_t>(task.members.size());
  for (std::size_t i = 0; i < task.members.size(); ++i) {
    const MeasuredSample& sample = task.sample(i);
    shape.tokens += aligned_tokens(settings, sample.tokens);
    shape.images += static_cast<std::int64_t>(sample.images.size());
    for (const MeasuredImage& image : sample.images) shape.patches += image.plan.n_patches();
    shape.clips += static_cast<std::int64_t>(sample.clips.size());
    for (const MeasuredClip& clip : sample.clips) shape.clip_patches += clip.plan.n_patches();
  }
  return shape;
}

}  // namespace

PackShape shape_of(const PackTask& task, const PackSettings& settings, const qwen_vl::QwenVl& model) {
  PackShape shape = shape_of_samples(task, settings, model);
  const MissingVision missing = missing_vision(settings, shape.images, shape.clips);
  if (missing.any() || task.members.empty())
    add(shape, aligned(model.dummy_shape(missing.image, missing.video), settings));
  if (shape.has_fixed_width) {
    const std::int64_t used = std::exchange(shape.tokens, padded_tokens(settings, shape.tokens));
    shape.tail_tokens = shape.tokens - used;
  }
  return shape;
}

PackJob::PackJob(PackTask task, const PackSettings& settings, std::shared_ptr<const qwen_vl::QwenVl> model,
                 std::shared_ptr<Block> block, Done done, Failed failed)
    : task_(std::move(task)),
      settings_(settings),
      model_(std::move(model)),
      block_(std::move(block)),
      done_(std::move(done)),
      failed_(std::move(failed)),
      planned_(shape_of(task_, settings_, *model_)),
      view_(block_->data(), PackLayout(planned_)),
      is_rejected_(task_.members.size(), false),
      parts_left_(0),
      is_kept_(task_.members.size(), true) {
  task_.completed.resize(task_.members.size());
  for (const std::uint32_t i : task_.rejected) {
    const MeasuredSample& sample = task_.sample(i);
    is_rejected_[i] = true;
    is_kept_[i] = false;
    bad_.push_back({0,
                    {.order_index = sample.order_index,
                     .entry = sample.entry,
                     .media = "",
                     .status = Status(Reason::kWorkerKilled,
                                      "the process that prepared the sample died each time that it was tried" +
                                          (task_.why_rejected.empty() ? "" : ": " + task_.why_rejected))}});
  }
  SampleExtent at;
  for (std::size_t i = 0; i < task_.members.size(); ++i) {
    const MeasuredSample& sample = task_.sample(i);
    at.token_begin = at.token_end;
    at.token_end += aligned_tokens(settings_, sample.tokens);
    at.n_pad = at.token_end - at.token_begin - sample.tokens;
    at.image_begin = at.image_end;
    at.image_end += static_cast<std::int64_t>(sample.images.size());
    at.patch_begin = at.patch_end;
    for (const MeasuredImage& image : sample.images) {
      patch_begin_.push_back(at.patch_end);
      at.patch_end += image.plan.n_patches();
    }
    at.clip_begin = at.clip_end;
    at.clip_end += static_cast<std::int64_t>(sample.clips.size());
    at.clip_patch_begin = at.clip_patch_end;
    for (const MeasuredClip& clip : sample.clips) {
      clip_patch_begin_.push_back(at.clip_patch_end);
      at.clip_patch_end += clip.plan.n_patches();
    }
    if (!is_rejected_[i]) n_parts_ += 1 + static_cast<std::int64_t>(sample.n_pictures());
    at.sample_id = static_cast<std::int64_t>(sample.order_index);
    extents_.push_back(at);
  }
  parts_left_ = n_parts_;
}

void PackJob::write_text(std::size_t i) {
  const MeasuredSample& sample = task_.sample(i);
  const SampleExtent& at = extents_[i];
  std::vector<qwen_vl::ImagePlan> plans;
  plans.reserve(sample.images.size());
  std::int64_t* grid = view_.image_grid_thw + 3 * at.image_begin;
  for (const MeasuredImage& image : sample.images) {
    plans.push_back(image.plan);
    *grid++ = 1;
    *grid++ = image.plan.grid_h;
    *grid++ = image.plan.grid_w;
  }
  std::vector<qwen_vl::ClipPlan> clips;
  grid = view_.video_grid_thw + 3 * at.clip_begin;
  for (const MeasuredClip& clip : sample.clips) {
    clips.push_back(clip.plan);
    *grid++ = clip.plan.grid_t;
    *grid++ = clip.plan.grid_h;
    *grid++ = clip.plan.grid_w;
  }
  const qwen_vl::NextPosition next = qwen_vl::write_expanded(sample.text, {plans, clips}, model_->expansion(),
                                                             model_->slots(view_, at.token_begin, planned_.tokens));
  model_->write_padding(view_, at, next, planned_.tokens);
  part_done();
}

std::uint8_t* PackJob::patches_of(std::size_t i, std::size_t k) {
  const auto image = static_cast<std::size_t>(extents_[i].image_begin) + k;
  return view_.image_patches + patch_begin_[image] * planned_.patch_bytes();
}

std::uint8_t* PackJob::clip_patches_of(std::size_t i, std::size_t c) {
  const auto clip = static_cast<std::size_t>(extents_[i].clip_begin) + c;
  return view_.video_patches + clip_patch_begin_[clip] * planned_.clip_patch_bytes();
}

void PackJob::picture_done(std::size_t i, std::size_t k, Status status) {
  if (!status.ok()) {
    const MeasuredSample& sample = task_.sample(i);
    MutexLock lock(mu_);
    // One line per sample, for the first of its pictures, whichever failed first.
    if (is_kept_[i]) {
      is_kept_[i] = false;
      bad_.push_back({k, {sample.order_index, sample.entry, shown_media(sample.picture(k).url), std::move(status)}});
    } else {
      const auto line = std::find_if(bad_.begin(), bad_.end(),
                                     [&](const Bad& b) { return b.entry.order_index == sample.order_index; });
      if (k < line->picture)
        *line = {k, {sample.order_index, sample.entry, shown_media(sample.picture(k).url), std::move(status)}};
    }
  }
  part_done();
}

void PackJob::note_stale(std::size_t i, std::size_t k) {
  MutexLock lock(mu_);
  stale_.push_back(task_.window->samples[task_.members[i]].picture(k).key);
}

void PackJob::part_done() {
  if (--parts_left_ == 0) finish();
}

PackShape PackJob::complete() {
  // A pack is never removed, never empty, and never loses a vision call that its plan promised.
  PackShape promised = shape_of_samples(task_, settings_, *model_);
  std::int64_t images_left = 0;
  std::int64_t clips_left = 0;
  bool is_any_left = false;
  for (std::size_t i = 0; i < is_kept_.size(); ++i) {
    if (!is_kept_[i]) continue;
    is_any_left = true;
    images_left += extents_[i].image_end - extents_[i].image_begin;
    clips_left += extents_[i].clip_end - extents_[i].clip_begin;
  }
  const MissingVision missing = missing_vision(settings_, images_left, clips_left);
  const bool needs_image = missing.image || (promised.images > 0 && images_left == 0);
  const bool needs_clip = missing.video || (promised.clips > 0 && clips_left == 0);
  const bool needs_dummy = needs_image || needs_clip || !is_any_left;
  const PackShape own = needs_dummy ? model_->dummy_shape(needs_image, needs_clip) : PackShape{};
  const PackShape dummy = aligned(own, settings_);
  const PackShape shape = bad_.empty() ? planned_ : close_gaps(view_, planned_, extents_, is_kept_, dummy);
  if (needs_dummy) {
    const std::int64_t token_end = shape.tokens - shape.tail_tokens;
    extents_.push_back({.token_begin = token_end - dummy.tokens,
                        .token_end = token_end,
                        .image_begin = shape.images - dummy.images,
                        .image_end = shape.images,
                        .patch_begin = shape.patches - dummy.patches,
                        .patch_end = shape.patches,
                        .clip_begin = shape.clips - dummy.clips,
                        .clip_end = shape.clips,
                        .clip_patch_begin = shape.clip_patches - dummy.clip_patches,
                        .clip_patch_end = shape.clip_patches,
                        .sample_id = -1,
                        .n_pad = dummy.tokens - own.tokens});
    model_->write_dummy(view_, extents_.back(), shape.tokens);
  }
  model_->write_tail(view_, shape);
  return shape;
}

void PackJob::finish() {
  ReadyPack ready;
  PackShape shape;
  BatchCounts counts = task_.counts;
  {
    MutexLock lock(mu_);  // nobody else is left; for the analysis
    for (std::size_t i = 0; i < task_.members.size(); ++i)
      counts.target_tokens += is_kept_[i] ? task_.sample(i).n_trained : 0;
    shape = complete();
    std::sort(bad_.begin(), bad_.end(),
              [](const Bad& a, const Bad& b) { return a.entry.order_index < b.entry.order_index; });
    for (Bad& b : bad_) ready.found_late.push_back(std::move(b.entry));
    ready.stale = std::move(stale_);
  }
  counts.tokens = shape.tokens;
  counts.pad_tokens = shape.tail_tokens;
  for (const SampleExtent& e : extents_) counts.pad_tokens += e.n_pad;
  counts.patches = shape.patches;
  counts.video_patches = shape.clip_patches;
  counts.is_step_target_upper_bound = !ready.found_late.empty();
  ready.batch = {.block = block_,
                 .shape = shape,
                 .planned = planned_,
                 .max_seqlen = write_boundaries(view_, extents_),
                 .counts = counts};
  ready.n_samples_planned = static_cast<std::int64_t>(task_.members.size());
  ready.task = std::move(task_);
  done_(std::move(ready));
}

}  // namespace stoker

#include "pipeline/pack_job.h"

#include <algorithm>
#include <utility>

#include "source/url.h"

namespace stoker {

PackShape shape_of(const PackTask& task, const qwen_vl::QwenVl& model) {
  if (!task.window) return model.dummy_shape(false, false);
  PackShape shape{.samples = static_cast<std::int64_t>(task.members.size()),
                  .has_loss_weights = model.has_loss_weights(),
                  .patch = model.config().patch,
                  .temporal_patch = model.config().temporal_patch};
  for (std::size_t i = 0; i < task.members.size(); ++i) {
    const MeasuredSample& sample = task.sample(i);
    shape.tokens += sample.tokens;
    shape.images += static_cast<std::int64_t>(sample.images.size());
    for (const MeasuredImage& image : sample.images) shape.patches += image.plan.n_patches();
    shape.clips += static_cast<std::int64_t>(sample.clips.size());
    for (const MeasuredClip& clip : sample.clips) shape.clip_patches += clip.plan.n_patches();
  }
  return shape;
}

PackJob::PackJob(PackTask task, std::shared_ptr<const qwen_vl::QwenVl> model, std::shared_ptr<Block> block, Done done)
    : task_(std::move(task)),
      model_(std::move(model)),
      block_(std::move(block)),
      done_(std::move(done)),
      planned_(shape_of(task_, *model_)),
      view_(block_->data(), PackLayout(planned_)),
      parts_left_(0),
      is_kept_(task_.members.size(), true) {
  SampleExtent at;
  for (std::size_t i = 0; i < task_.members.size(); ++i) {
    const MeasuredSample& sample = task_.sample(i);
    at.token_begin = at.token_end;
    at.token_end += sample.tokens;
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
    n_pictures_ += static_cast<std::int64_t>(sample.n_pictures());
    at.sample_id = static_cast<std::int64_t>(sample.order_index);
    extents_.push_back(at);
  }
  parts_left_ = n_parts();
}

std::int64_t PackJob::n_parts() const { return task_.window ? planned_.samples + n_pictures_ : 1; }

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
  qwen_vl::write_expanded(
      sample.text, {plans, clips}, model_->expansion(),
      {view_.input_ids + at.token_begin, view_.labels + at.token_begin, view_.position_ids + at.token_begin,
       planned_.tokens, planned_.has_loss_weights ? view_.loss_weights + at.token_begin : nullptr});
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

void PackJob::write_dummy_pack() {
  const PackShape shape = model_->dummy_shape(false, false);
  const SampleExtent at{.token_end = shape.tokens, .sample_id = -1};
  extents_ = {at};
  model_->write_dummy(view_, at, planned_.tokens);
  part_done();
}

void PackJob::part_done() {
  if (--parts_left_ == 0) finish();
}

void PackJob::finish() {
  ReadyPack ready;
  PackShape shape = planned_;
  std::int64_t target_tokens = 0;
  {
    MutexLock lock(mu_);  // nobody else is left; for the analysis
    for (std::size_t i = 0; i < task_.members.size(); ++i)
      target_tokens += is_kept_[i] ? task_.sample(i).text.n_trained : 0;
    if (!bad_.empty()) {
      // A pack is never removed, never empty, and never loses a vision call that its plan promised.
      std::int64_t images_left = 0;
      std::int64_t clips_left = 0;
      bool is_any_left = false;
      for (std::size_t i = 0; i < is_kept_.size(); ++i) {
        if (!is_kept_[i]) continue;
        is_any_left = true;
        images_left += extents_[i].image_end - extents_[i].image_begin;
        clips_left += extents_[i].clip_end - extents_[i].clip_begin;
      }
      const bool needs_image = planned_.images > 0 && images_left == 0;
      const bool needs_clip = planned_.clips > 0 && clips_left == 0;
      const bool needs_dummy = needs_image || needs_clip || !is_any_left;
      const PackShape dummy = needs_dummy ? model_->dummy_shape(needs_image, needs_clip) : PackShape{};
      shape = close_gaps(view_, planned_, extents_, is_kept_, dummy);
      if (needs_dummy) {
        const SampleExtent at{shape.tokens - dummy.tokens,
                              shape.tokens,
                              shape.images - dummy.images,
                              shape.images,
                              shape.patches - dummy.patches,
                              shape.patches,
                              shape.clips - dummy.clips,
                              shape.clips,
                              shape.clip_patches - dummy.clip_patches,
                              shape.clip_patches,
                              -1};
        model_->write_dummy(view_, at, shape.tokens);
        extents_.push_back(at);
      }
      std::sort(bad_.begin(), bad_.end(),
                [](const Bad& a, const Bad& b) { return a.entry.order_index < b.entry.order_index; });
      for (Bad& b : bad_) ready.found_late.push_back(std::move(b.entry));
    }
  }
  BatchCounts counts = task_.counts;
  counts.tokens = shape.tokens;
  counts.patches = shape.patches;
  counts.video_patches = shape.clip_patches;
  counts.target_tokens = target_tokens;
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

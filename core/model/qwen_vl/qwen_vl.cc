#include "model/qwen_vl/qwen_vl.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "model/families.h"
#include "model/qwen_vl/clip_text.h"

namespace stoker::qwen_vl {
namespace {

PixelLimits requested_limits(PixelLimits limits, const SizeRequest& request) {
  if (request.min_pixels > 0) limits.min_pixels = request.min_pixels;
  if (request.max_pixels > 0) limits.max_pixels = request.max_pixels;
  return limits;
}

SizePx requested_size(SizePx own, const SizeRequest& request) {
  return request.resized.height > 0 && request.resized.width > 0 ? request.resized : own;
}

}  // namespace

Result<std::shared_ptr<const QwenVl>> QwenVl::load(const std::filesystem::path& folder, const Profile& profile,
                                                   const TextOptions& options) {
  STOKER_TRY(const Family* family, family_of(folder));
  STOKER_TRY(const FolderConfig config, load_folder_config(folder, *family));
  STOKER_TRY(auto tokenizer, text::Tokenizer::load(folder / "tokenizer.json"));
  STOKER_TRY(auto chat_template, text::ChatTemplate::load(folder, options.engine, options.make_renderer));
  std::shared_ptr<QwenVl> model(new QwenVl(*family, config, tokenizer, std::move(chat_template), profile, options));
  const std::array<std::pair<const char*, std::int32_t*>, 8> wanted = {{{"<|image_pad|>", &model->image_pad_},
                                                                        {"<|video_pad|>", &model->video_pad_},
                                                                        {"<|vision_pad|>", &model->vision_pad_},
                                                                        {"<|vision_start|>", &model->vision_start_},
                                                                        {"<|vision_end|>", &model->vision_end_},
                                                                        {"<|im_end|>", &model->turn_end_},
                                                                        {"<|endoftext|>", &model->end_of_text_},
                                                                        {"\n", &model->line_feed_}}};
  for (const auto& [name, id] : wanted) {
    const auto found = tokenizer->token_id(name);
    if (!found)
      return Status(Reason::kModelFolder, fmt::format("{}/tokenizer.json has no token {}", folder.string(), name));
    *id = *found;
  }
  return std::shared_ptr<const QwenVl>(std::move(model));
}

QwenVl::QwenVl(const Family& family, FolderConfig config, std::shared_ptr<const text::Tokenizer> tokenizer,
               text::ChatTemplate chat_template, const Profile& profile, const TextOptions& options)
    : family_(family),
      config_(config),
      tokenizer_(std::move(tokenizer)),
      template_(std::move(chat_template)),
      profile_(profile),
      labels_(options.labels),
      box_form_(options.box_form.value_or(family.box_form)) {
  Digest digest;
  digest.add(tokenizer_->fingerprint());
  digest.add(template_.fingerprint());
  digest.add_int(template_.is_native() ? 1 : 0);
  const ProcessorConfig& image = config_.image;
  const ClipConfig& clip = config_.clip;
  digest.add(family_.name);
  for (const std::int64_t n : {std::int64_t{image.patch}, std::int64_t{image.merge}, std::int64_t{image.temporal_patch},
                               image.limits.min_pixels, image.limits.max_pixels, clip.limits.min_pixels,
                               clip.limits.max_pixels, clip.max_video_tokens}) {
    digest.add_int(n);
  }
  for (const auto* triple : {&image.mean, &image.std, &clip.mean, &clip.std}) {
    for (const double x : *triple) digest.add(&x, sizeof x);
  }
  for (const double x : {image.rescale, clip.rescale, config_.tokens_per_second}) digest.add(&x, sizeof x);
  digest.add(profile_.facts());
  fingerprint_ = digest.hex();
}

Result<std::vector<std::vector<std::string>>> QwenVl::clip_times(const Sample& sample) const {
  std::vector<std::vector<std::string>> out;
  for (const MediaRef& media : sample.media) {
    if (media.kind != MediaKind::kVideo) continue;
    if (media.frames.empty()) {
      return Status(
          Reason::kMediaUnsupported,
          fmt::format("{}: video files are not decoded by this version; give the clip as a list of its frames",
                      media.reference));
    }
    if (family_.clip_tokens != ClipTokens::kBlockPerTime) continue;
    const ClipTimes times =
        times_of(static_cast<std::int64_t>(media.frames.size()), media.frames_per_s, media.source_frames_per_s);
    std::vector<std::string>& texts = out.emplace_back();
    for (const double s : seconds_of_patches(times, config_.image.temporal_patch)) texts.push_back(timestamp_text(s));
  }
  return out;
}

Status QwenVl::check_media(const Sample& sample, const SampleText& text) const {
  std::int32_t n_images = 0;
  std::int32_t n_clips = 0;
  std::int32_t n_clip_pads = 0;
  for (const MediaRef& media : sample.media) {
    if (media.kind == MediaKind::kImage) {
      ++n_images;
      continue;
    }
    ++n_clips;
    n_clip_pads += clip_pads(static_cast<std::int64_t>(media.frames.size()));
  }
  if (text.n_images != n_images) {
    return {Reason::kMediaCount, fmt::format("in the text as the chat template writes it: placeholders {}, images {}",
                                             text.n_images, n_images)};
  }
  if (text.n_clip_pads != n_clip_pads) {
    return {
        Reason::kMediaCount,
        fmt::format(
            "in the text as the chat template writes it: placeholders of clips {}, where the row's {} clips make {}",
            text.n_clip_pads, n_clips, n_clip_pads)};
  }
  return {};
}

std::int32_t QwenVl::grid_t_of(std::int64_t n_frames) const {
  const std::int64_t tau = config_.image.temporal_patch;
  return static_cast<std::int32_t>((n_frames + tau - 1) / tau);
}

std::int32_t QwenVl::clip_pads(std::int64_t n_frames) const {
  return family_.clip_tokens == ClipTokens::kBlockPerTime ? grid_t_of(n_frames) : 1;
}

Expansion QwenVl::expansion() const {
  return {.image_pad = image_pad_,
          .video_pad = video_pad_,
          .merge = config_.image.merge,
          .clip_positions = profile_.clip_positions,
          .has_time_in_positions = family_.has_time_in_positions,
          .tokens_per_second = config_.tokens_per_second};
}

SizeRequest request_of(const MediaRef& media) {
  return {.min_pixels = media.min_pixels,
          .max_pixels = media.max_pixels,
          .total_pixels = media.total_pixels,
          .resized = {media.resized_height_px, media.resized_width_px}};
}

Result<ImagePlan> QwenVl::plan_image(SizePx size, const SizeRequest& request) const {
  const ProcessorConfig& config = config_.image;
  SizePx target;
  if (profile_.image_size == ImageSizeRule::kQwenVlUtils) {
    STOKER_TRY(target, qwen_vl_utils_image_size(size, config.factor(), request));
  } else {
    STOKER_TRY(target,
               smart_resize(requested_size(size, request), config.factor(), requested_limits(config.limits, request)));
  }
  ImagePlan plan{.height_px = target.height,
                 .width_px = target.width,
                 .grid_h = target.height / config.patch,
                 .grid_w = target.width / config.patch};
  plan.n_tokens = static_cast<std::int32_t>(plan.n_patches() / (config.merge * config.merge));
  return plan;
}

ClipTimes QwenVl::times_of(std::int64_t n_frames, double frames_per_s, double source_frames_per_s) const {
  const double unknown =
      family_.has_time_in_positions ? profile_.frames_per_s_in_positions_if_unknown : profile_.frames_per_s_if_unknown;
  const double rate = frames_per_s > 0 ? frames_per_s : unknown;
  const bool is_qvu = profile_.clip_size == ClipSizeRule::kQwenVlUtils;
  if (is_qvu) n_frames += n_frames % 2;  // made even by the last picture, whose number then counts on
  ClipTimes times{.frames = std::vector<std::int64_t>(static_cast<std::size_t>(n_frames)),
                  .fps = rate,
                  .total_frames = static_cast<double>(n_frames)};
  std::iota(times.frames.begin(), times.frames.end(), std::int64_t{0});
  if (is_qvu) {
    times.fps = source_frames_per_s > 0 ? source_frames_per_s : rate;
    times.total_frames = static_cast<double>(n_frames) / rate * times.fps;
  }
  return times;
}

Result<ClipPlan> QwenVl::plan_clip(const ClipRequest& clip) const {
  const ProcessorConfig& config = config_.image;
  ClipPlan plan{.n_frames = static_cast<std::int32_t>(clip.n_frames)};
  SizePx target;
  if (profile_.clip_size == ClipSizeRule::kQwenVlUtils) {
    STOKER_TRY(const QwenVlUtilsSizes sizes,
               qwen_vl_utils_clip_size(clip.n_frames, clip.frame, config.factor(), clip.size));
    plan.first_height_px = sizes.first.height;
    plan.first_width_px = sizes.first.width;
    target = sizes.second;
  } else {
    const ClipSizing sizing{.factor = config.factor(),
                            .temporal_patch = config.temporal_patch,
                            .limits = requested_limits(config_.clip.limits, clip.size),
                            .max_video_tokens = config_.clip.max_video_tokens,
                            .is_capped = profile_.is_clip_capped_per_frame};
    STOKER_TRY(target,
               clip_size(family_, profile_.clip_size, clip.n_frames, requested_size(clip.frame, clip.size), sizing));
  }
  plan.height_px = target.height;
  plan.width_px = target.width;
  plan.grid_t = grid_t_of(clip.n_frames);
  plan.grid_h = target.height / config.patch;
  plan.grid_w = target.width / config.patch;
  plan.n_pads = clip_pads(clip.n_frames);
  plan.n_tokens = static_cast<std::int32_t>(plan.n_patches() / (config.merge * config.merge));
  if (family_.has_time_in_positions) {
    plan.seconds_per_grid =
        seconds_per_grid(times_of(clip.n_frames, clip.frames_per_s, clip.source_frames_per_s), config.temporal_patch);
  }
  return plan;
}

SampleText QwenVl::dummy_text(bool with_image, bool with_clip) const {
  SampleText text;
  auto show = [&](std::int32_t pad) {
    for (const std::int32_t id : {vision_start_, pad, vision_end_}) text.ids.push_back(id);
  };
  if (with_image) show(image_pad_);
  if (with_clip) show(video_pad_);
  if (text.ids.empty()) text.ids.push_back(end_of_text_);
  text.is_trained.assign(text.ids.size(), 0);
  text.n_images = with_image ? 1 : 0;
  text.n_clip_pads = with_clip ? 1 : 0;
  return text;
}

PackShape QwenVl::empty_shape() const {
  return {.has_loss_weights = has_loss_weights(),
          .patch = config_.image.patch,
          .temporal_patch = config_.image.temporal_patch,
          .merge = config_.image.merge,
          .image_token_id = image_pad_,
          .video_token_id = video_pad_,
          .pad_token_id = end_of_text_};
}

PackShape QwenVl::dummy_shape(bool with_image, bool with_clip) const {
  const std::int64_t merged = std::int64_t{config_.image.merge} * config_.image.merge;
  PackShape shape = empty_shape();
  shape.tokens = static_cast<std::int64_t>(dummy_text(with_image, with_clip).ids.size());
  shape.samples = 1;
  shape.images = with_image ? 1 : 0;
  shape.patches = with_image ? merged : 0;
  shape.clips = with_clip ? 1 : 0;
  shape.clip_patches = with_clip ? merged : 0;
  return shape;
}

TokenSlots QwenVl::slots(const PackView& view, std::int64_t token, std::int64_t stride) const {
  return {view.input_ids + token, view.labels + token, view.position_ids + token, stride,
          has_loss_weights() ? view.loss_weights + token : nullptr};
}

void QwenVl::write_padding(const PackView& view, const SampleExtent& at, NextPosition next, std::int64_t stride) const {
  write_filling(at.n_pad, end_of_text_, next, slots(view, at.token_end - at.n_pad, stride));
}

void QwenVl::write_tail(const PackView& view, const PackShape& shape) const {
  write_filling(shape.tail_tokens, end_of_text_, {}, slots(view, shape.tokens - shape.tail_tokens, shape.tokens));
}

void QwenVl::write_dummy(const PackView& view, const SampleExtent& at, std::int64_t stride) const {
  const bool with_image = at.image_end > at.image_begin;
  const bool with_clip = at.clip_end > at.clip_begin;
  const int merge = config_.image.merge;
  const ImagePlan image{.height_px = config_.image.factor(),
                        .width_px = config_.image.factor(),
                        .grid_h = merge,
                        .grid_w = merge,
                        .n_tokens = 1};
  const ClipPlan clip{.n_frames = 1, .grid_t = 1, .grid_h = merge, .grid_w = merge, .n_pads = 1, .n_tokens = 1};
  const NextPosition next =
      write_expanded(dummy_text(with_image, with_clip), {{&image, with_image ? 1U : 0U}, {&clip, with_clip ? 1U : 0U}},
                     expansion(), slots(view, at.token_begin, stride));
  write_padding(view, at, next, stride);
  const PackShape patch{.patch = config_.image.patch, .temporal_patch = config_.image.temporal_patch};
  auto write = [&](std::int64_t* grid, std::uint8_t* patches, std::int64_t n_patches, std::int64_t n_bytes) {
    grid[0] = 1;
    grid[1] = grid[2] = merge;
    std::memset(patches, 255, static_cast<std::size_t>(n_patches * n_bytes));
  };
  if (with_image) {
    write(view.image_grid_thw + 3 * at.image_begin, view.image_patches + at.patch_begin * patch.patch_bytes(),
          at.patch_end - at.patch_begin, patch.patch_bytes());
  }
  if (with_clip) {
    write(view.video_grid_thw + 3 * at.clip_begin, view.video_patches + at.clip_patch_begin * patch.clip_patch_bytes(),
          at.clip_patch_end - at.clip_patch_begin, patch.clip_patch_bytes());
  }
}

}  // namespace stoker::qwen_vl

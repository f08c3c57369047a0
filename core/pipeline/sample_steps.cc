#include "pipeline/sample_steps.h"

#include <fmt/format.h>

#include <utility>

#include "plan/padding.h"
#include "source/data/data_url.h"
#include "source/url.h"

namespace stoker {

FetchSettings fetch_settings(const LoaderSettings& settings) {
  return {.concurrency = settings.speed.fetch_concurrency,
          .max_concurrency = settings.speed.max_fetch_concurrency,
          .n_threads = settings.speed.fetch_threads,
          .n_file_threads = std::clamp(settings.speed.fetch_concurrency, 1, 16),
          .hedge_share = settings.speed.hedge_share,
          .outage_limit_s = settings.outage_limit_s,
          .timeouts = settings.timeouts,
          .retry = {},
          .storage = settings.storage,
          .cache = settings.cache};
}

Result<std::shared_ptr<const qwen_vl::QwenVl>> load_model(const LoaderSettings& settings) {
  const OutputSettings& output = settings.output;
  STOKER_TRY(auto model, qwen_vl::QwenVl::load(output.model, output.profile,
                                               {.engine = output.template_engine,
                                                .labels = output.labels,
                                                .box_form = output.box_form,
                                                .make_renderer = settings.make_renderer}));
  for (const bool image : {false, true}) {
    for (const bool video : {false, true}) {
      const std::int64_t n = model->dummy_shape(image, video).tokens;
      if (n == dummy_tokens(output.pack, image, video)) continue;
      return Status(Reason::kInternal, fmt::format("a dummy segment of {} tokens, planned with {}", n,
                                                   dummy_tokens(output.pack, image, video)));
    }
  }
  return model;
}

CostModel cost_of(const OutputSettings& output, const qwen_vl::QwenVl& model) {
  return output.cost.value_or(model.cost().value_or(CostModel{}));
}

namespace {

/// A row without what only its media's reading needs: pictures may stand in it.
std::shared_ptr<Sample> text_of(const Sample& row) {
  auto text = std::make_shared<Sample>();
  text->turns = row.turns;
  text->boxes = row.boxes;
  text->tools = row.tools;
  for (const MediaRef& media : row.media) {
    MediaRef& kept = text->media.emplace_back();
    kept.kind = media.kind;
    kept.frames.resize(media.frames.size());
    kept.frames_per_s = media.frames_per_s;
    kept.source_frames_per_s = media.source_frames_per_s;
    if (media.kind == MediaKind::kVideo) kept.reference = media.reference;
  }
  return text;
}

}  // namespace

Status read_sample(std::string_view line, const std::string& media_root, const RowOptions& rows,
                   const OutputSettings& output, const qwen_vl::QwenVl& model, MeasuredSample& sample, Sample& row,
                   RowNotes* notes, ShownText* shown) {
  std::string rewritten;
  if (output.user_code && output.user_code->has_row()) {
    STOKER_TRY(rewritten, output.user_code->row(line));
    line = rewritten;
  }
  STOKER_TRY(row, parse_row(line, rows, notes));
  if (row.boxes.empty()) {
    STOKER_TRY(sample.text, model.encode(row, shown != nullptr ? &shown->turns : nullptr));
  } else {
    sample.waiting = text_of(row);
  }
  auto resolved = [&](const std::string& reference, MeasuredImage& picture) -> Status {
    if (is_data_url(reference)) {
      // A window of planned samples must not hold its pictures: the row is read again when they are wanted.
      picture.url = shown_media(reference);
      picture.is_inline = true;
      picture.object_bytes = data_url_bytes(reference);
      return {};
    }
    auto url = resolve_media(reference, media_root);
    if (!url.ok()) {
      sample.bad_media = shown_media(reference);
      return std::move(url).status();
    }
    picture.url = std::move(url).value();
    return {};
  };
  for (const MediaRef& media : row.media) {
    if (media.kind == MediaKind::kImage) {
      MeasuredImage& image = sample.images.emplace_back();
      image.request = qwen_vl::request_of(media);
      STOKER_CHECKED(resolved(media.reference, image));
      continue;
    }
    MeasuredClip& clip = sample.clips.emplace_back();
    clip.frames_per_s = media.frames_per_s;
    clip.source_frames_per_s = media.source_frames_per_s;
    clip.request = qwen_vl::request_of(media);
    clip.frames.resize(media.frames.size());
    for (std::size_t f = 0; f < media.frames.size(); ++f) {
      clip.frames[f].is_frame = true;
      STOKER_CHECKED(resolved(media.frames[f], clip.frames[f]));
    }
  }
  return {};
}

std::vector<PictureRef> pictures_of(const std::vector<MediaRef>& media) {
  std::vector<PictureRef> out;
  for (const MediaRef& each : media) {
    if (each.kind == MediaKind::kImage) out.push_back({&each, &each.reference});
  }
  for (const MediaRef& each : media) {
    if (each.kind != MediaKind::kVideo) continue;
    for (const std::string& frame : each.frames) out.push_back({&each, &frame});
  }
  return out;
}

Result<Buffer> read_inline(const std::string& reference) {
  constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 31;  // as for any object
  return decode_data_url(reference, kMostBytes);
}

Status measure_inline(const OutputSettings& output, const qwen_vl::QwenVl& model, const std::string& reference,
                      MeasuredImage& image, ImageInfo* info) {
  STOKER_TRY(const Buffer bytes, read_inline(reference));
  image.object_bytes = bytes.size();
  STOKER_TRY(const Probe probed, probe(bytes.bytes(), bytes.size(), output.image.limits));
  if (!probed.info) return {Reason::kImgTruncated, "the header is not complete"};
  if (info != nullptr) *info = *probed.info;
  const qwen_vl::SizePx found = upright_size(*probed.info, output.image);
  if (image.is_size_from_row && image.upright != found) return size_mismatch(image, found);
  return plan_measured(output, model, found, image);
}

Result<std::vector<Result<Buffer>>> read_inline(const Dataset& dataset, const OutputSettings& output,
                                                const OrderEntry& entry, std::span<const std::size_t> pictures) {
  thread_local std::string buffer;
  STOKER_TRY(std::string_view line, dataset.manifest(entry.source).read(entry.row, buffer));
  std::string rewritten;
  if (output.user_code && output.user_code->has_row()) {
    STOKER_TRY(rewritten, output.user_code->row(line));
    line = rewritten;
  }
  STOKER_TRY(const Sample row, parse_row(line, dataset.rows(entry.source)));
  const std::vector<PictureRef> found = pictures_of(row.media);
  std::vector<Result<Buffer>> out;
  for (const std::size_t k : pictures) {
    if (k >= found.size() || !is_data_url(*found[k].reference)) {
      return Status(Reason::kManifest, dataset.name(entry.source) + ": a row is not what it was when it was planned");
    }
    out.push_back(read_inline(*found[k].reference));
  }
  return out;
}

bool is_size_trusted(const OutputSettings& output, const MediaRef& media) {
  return output.row_sizes == RowSizes::kTrust && media.height_px > 0 && media.width_px > 0;
}

qwen_vl::SizePx upright_size(const ImageInfo& info, const ImageOptions& options) {
  return {info.upright_height_px(options.is_exif_applied), info.upright_width_px(options.is_exif_applied)};
}

Status plan_measured(const OutputSettings& output, const qwen_vl::QwenVl& model, qwen_vl::SizePx upright,
                     MeasuredImage& image) {
  image.upright = upright;
  image.prepared = upright;
  if (output.user_code && output.user_code->has_picture()) {
    STOKER_TRY(image.prepared, output.user_code->size(upright));
  }
  if (image.is_frame) return {};  // a clip's frames are planned together
  STOKER_TRY(image.plan, model.plan_image(image.prepared, image.request));
  return {};
}

namespace {

/// Ends the conversation at the last place where it fits. @return Whether there is one.
bool truncate_turns(std::int64_t limit, const qwen_vl::SampleMedia& media, MeasuredSample& sample) {
  const std::vector<qwen_vl::SampleText::Cut>& cuts = sample.text.cuts;
  for (std::size_t k = cuts.size(); k-- > 0;) {
    const qwen_vl::SampleText::Cut cut = cuts[k];
    const auto n_images = static_cast<std::size_t>(cut.n_images);
    std::size_t n_clips = 0;
    for (std::int32_t pads = 0; pads < cut.n_clip_pads && n_clips < media.clips.size(); ++n_clips) {
      pads += media.clips[n_clips].n_pads;
    }
    const std::int64_t tokens =
        qwen_vl::expanded_length(cut.n_ids, {media.images.first(n_images), media.clips.first(n_clips)});
    if (tokens > limit || cut.n_trained == 0) continue;
    if (sample.has_text) cut_text(sample.text, k);
    sample.images.resize(n_images);
    sample.clips.resize(n_clips);
    sample.tokens = tokens;
    sample.n_ids = cut.n_ids;
    sample.n_trained = cut.n_trained;
    sample.is_truncated = true;
    return true;
  }
  return false;
}

}  // namespace

void cut_text(qwen_vl::SampleText& text, std::size_t k) {
  const qwen_vl::SampleText::Cut cut = text.cuts[k];
  const auto n_ids = static_cast<std::size_t>(cut.n_ids);
  text.ids.resize(n_ids);
  text.is_trained.resize(n_ids);
  if (!text.loss_weights.empty()) text.loss_weights.resize(n_ids);
  text.n_images = cut.n_images;
  text.n_clip_pads = cut.n_clip_pads;
  text.n_trained = cut.n_trained;
  text.cuts.resize(k + 1);
}

Status plan_clip(const qwen_vl::QwenVl& model, MeasuredClip& clip, std::string& bad_media) {
  const MeasuredImage& first = clip.frames.front();
  for (const MeasuredImage& frame : clip.frames) {
    if (frame.prepared == first.prepared) continue;
    bad_media = frame.url;
    return {Reason::kClipFrames,
            fmt::format("frames of one clip have one size: {}x{} (height x width) after {}x{}", frame.prepared.height,
                        frame.prepared.width, first.prepared.height, first.prepared.width)};
  }
  auto plan = model.plan_clip({.n_frames = static_cast<std::int64_t>(clip.frames.size()),
                               .frame = first.prepared,
                               .frames_per_s = clip.frames_per_s,
                               .source_frames_per_s = clip.source_frames_per_s,
                               .size = clip.request});
  if (!plan.ok()) {
    bad_media = first.url;
    return std::move(plan).status();
  }
  clip.plan = *plan;
  for (MeasuredImage& frame : clip.frames) {
    frame.plan = {.height_px = clip.plan.height_px,
                  .width_px = clip.plan.width_px,
                  .grid_h = clip.plan.grid_h,
                  .grid_w = clip.plan.grid_w};
  }
  return {};
}

Status finish_text(const qwen_vl::QwenVl& model, MeasuredSample& sample, ShownText* shown) {
  if (!sample.waiting) return {};
  const std::shared_ptr<Sample> row = std::exchange(sample.waiting, nullptr);
  std::vector<qwen_vl::BoxPicture> pictures;
  for (const MeasuredImage& image : sample.images) {
    if (image.prepared != image.upright) {
      sample.bad_media = image.url;
      return {
          Reason::kUserCode,
          fmt::format("user_code.picture makes {}x{} (height x width) of {}x{}, so that nobody knows where the row's "
                      "boxes are: pictures with boxes must keep their size",
                      image.prepared.height, image.prepared.width, image.upright.height, image.upright.width)};
    }
    pictures.push_back({.upright = image.upright, .target = {image.plan.height_px, image.plan.width_px}});
  }
  STOKER_CHECKED(model.write_boxes(pictures, *row, shown != nullptr ? &shown->boxes : nullptr));
  STOKER_TRY(sample.text, model.encode(*row, shown != nullptr ? &shown->turns : nullptr));
  return {};
}

namespace {

PlanSample media_counts(const MeasuredSample& sample) {
  PlanSample counts{.tokens = sample.tokens,
                    .images = static_cast<std::int32_t>(sample.images.size()),
                    .videos = static_cast<std::int32_t>(sample.clips.size())};
  for (const MeasuredImage& image : sample.images) counts.patches += image.plan.n_patches();
  for (const MeasuredClip& clip : sample.clips) counts.patches += clip.plan.n_patches();
  return counts;
}

}  // namespace

Status finish_measured(const OutputSettings& output, const qwen_vl::QwenVl& model, MeasuredSample& sample,
                       ShownText* shown) {
  STOKER_CHECKED(finish_text(model, sample, shown));
  if (sample.has_text) {
    sample.n_ids = static_cast<std::int64_t>(sample.text.ids.size());
    sample.n_trained = sample.text.n_trained;
  }
  std::vector<qwen_vl::ImagePlan> plans;
  std::vector<qwen_vl::ClipPlan> clips;
  std::int64_t visual = 0;
  for (const MeasuredImage& image : sample.images) {
    plans.push_back(image.plan);
    if (!image.is_planned()) plans.back().n_tokens = 1;  // the placeholder itself
    visual += plans.back().n_tokens;
  }
  for (MeasuredClip& clip : sample.clips) {
    if (clip.frames.front().upright == qwen_vl::SizePx{}) {  // no header was to be read: its pads stand for themselves
      clips.emplace_back();
      continue;
    }
    STOKER_CHECKED(plan_clip(model, clip, sample.bad_media));
    clips.push_back(clip.plan);
    visual += clip.plan.n_tokens;
  }
  sample.tokens = qwen_vl::expanded_length(sample.n_ids, {plans, clips});
  const std::int64_t limit = longest_sample(output.pack);
  const bool is_cut = sample.tokens > limit && output.over_long == OverLong::kTruncateTurns &&
                      truncate_turns(limit, {plans, clips}, sample);
  if (sample.tokens > limit && !is_cut) {
    return {Reason::kSeqTooLong,
            fmt::format("length {}, limit {}, visual {} (in tokens; pack.tokens_per_pack is the limit{})",
                        sample.tokens, limit, visual,
                        limit == output.pack.tokens_per_pack
                            ? ""
                            : fmt::format(", {}, less what alignment, padding and room for a dummy segment take",
                                          output.pack.tokens_per_pack))};
  }
  return check_fits(output.pack, media_counts(sample));
}

Status size_mismatch(const MeasuredImage& planned, qwen_vl::SizePx found) {
  const bool is_swapped = found.height == planned.upright.width && found.width == planned.upright.height;
  return {Reason::kMediaSizeMismatch,
          fmt::format("planned {}x{} (height x width, from the {}), found {}x{}{}", planned.upright.height,
                      planned.upright.width,
                      planned.is_size_from_row ? "row" : "header as this run or an earlier one read it", found.height,
                      found.width,
                      is_swapped && planned.is_size_from_row
                          ? "; the row's sizes look swapped or not upright: set media.sizes: ignore"
                          : "")};
}

bool has_changed(const MeasuredImage& planned, std::string_view etag) {
  return planned.tag != 0 && !etag.empty() && planned.tag != tag_hash(etag);
}

namespace {

/// Probes a whole object and holds its size against the plan.
Result<ImageInfo> checked_header(const ImageOptions& options, const MeasuredImage& planned,
                                 std::span<const std::byte> object) {
  STOKER_TRY(const Probe probed, probe(object, object.size(), options.limits));
  if (!probed.info) return Status(Reason::kImgTruncated, "the header is not complete");
  const qwen_vl::SizePx found = upright_size(*probed.info, options);
  if (found != planned.upright) return size_mismatch(planned, found);
  return *probed.info;
}

bool has_picture_code(const OutputSettings& output) { return output.user_code && output.user_code->has_picture(); }

/// The whole picture, as the user's own code gives it.
Result<RgbImage> decode_whole(const OutputSettings& output, const MeasuredImage& planned,
                              std::span<const std::byte> object) {
  STOKER_TRY(RgbImage picture, decode_rgb(object, output.image));
  if (!has_picture_code(output)) return picture;
  STOKER_TRY(picture, output.user_code->picture(std::move(picture)));
  const qwen_vl::SizePx given{picture.height_px, picture.width_px};
  if (given == planned.prepared) return picture;
  return Status(
      Reason::kUserCode,
      fmt::format("user_code.picture gave a picture of {}x{} (height x width) where {}x{} was planned: it must "
                  "keep the size, or declare it by a function `size(h, w)` of its own",
                  given.height, given.width, planned.prepared.height, planned.prepared.width));
}

PatchGeometry geometry_of(const qwen_vl::QwenVl& model, int height_px, int width_px) {
  return {.height_px = height_px, .width_px = width_px, .patch = model.config().patch, .merge = model.config().merge};
}

}  // namespace

std::size_t decoder_bytes(const OutputSettings& output, const qwen_vl::QwenVl& model, bool is_frame,
                          std::span<const std::byte> object) {
  const auto probed = probe(object, object.size(), output.image.limits);
  if (!probed.ok() || !probed->info) return 0;
  const std::size_t whole = std::size_t{3} * static_cast<std::size_t>(probed->info->height_px) *
                            static_cast<std::size_t>(probed->info->width_px);
  std::size_t n_bytes = probed->info->scratch_bytes;
  if (has_picture_code(output)) n_bytes += 2 * whole;  // what the code is given, and what it gives
  const Resizer resizer = is_frame ? model.profile().clip_resize : output.image.resizer;
  if (resizer == Resizer::kFloat) n_bytes += whole;
  return n_bytes;
}

Status decode_measured(const OutputSettings& output, const qwen_vl::QwenVl& model, const MeasuredImage& planned,
                       std::span<const std::byte> object, PatchDecoder& decoder, std::uint8_t* patches) {
  STOKER_TRY(const ImageInfo info, checked_header(output.image, planned, object));
  const PatchGeometry to = geometry_of(model, planned.plan.height_px, planned.plan.width_px);
  if (!has_picture_code(output)) return decoder.decode(object, info, to, output.image, patches);
  STOKER_TRY(const RgbImage picture, decode_whole(output, planned, object));
  return decoder.patches_of(picture, to, output.image.resizer, patches);
}

Status decode_frame(const OutputSettings& output, const qwen_vl::QwenVl& model, const MeasuredClip& clip,
                    std::size_t frame, std::span<const std::byte> object, PatchDecoder& decoder,
                    std::vector<std::uint8_t>& scratch, std::uint8_t* clip_patches) {
  const MeasuredImage& planned = clip.frames[frame];
  const qwen_vl::ClipPlan& plan = clip.plan;
  const PatchGeometry to = geometry_of(model, plan.height_px, plan.width_px);
  STOKER_TRY(const ImageInfo info, checked_header(output.image, planned, object));
  scratch.resize(to.n_bytes());
  ImageOptions options = output.image;
  const bool is_resized_twice =
      plan.first_height_px > 0 && (plan.first_height_px != plan.height_px || plan.first_width_px != plan.width_px);
  if (plan.first_height_px == 0) options.resizer = model.profile().clip_resize;
  if (is_resized_twice) {
    STOKER_TRY(RgbImage picture, decode_whole(output, planned, object));
    STOKER_TRY(picture, resize_rgb(picture, plan.first_height_px, plan.first_width_px, options.resizer));
    STOKER_CHECKED(decoder.patches_of(picture, to, model.profile().clip_resize, scratch.data()));
  } else if (has_picture_code(output)) {
    STOKER_TRY(const RgbImage picture, decode_whole(output, planned, object));
    STOKER_CHECKED(decoder.patches_of(picture, to, options.resizer, scratch.data()));
  } else {
    STOKER_CHECKED(decoder.decode(object, info, to, options, scratch.data()));
  }
  const PackShape shape{.patch = model.config().patch, .temporal_patch = model.config().temporal_patch};
  const auto t = static_cast<std::size_t>(shape.temporal_patch);
  const std::size_t time = frame / t;
  // The last frame fills its temporal patch up.
  const std::size_t end = frame + 1 == clip.frames.size() ? t : frame % t + 1;
  std::uint8_t* const at =
      clip_patches + static_cast<std::int64_t>(time) * plan.patches_per_time() * shape.clip_patch_bytes();
  for (std::size_t k = frame % t; k < end; ++k) {
    write_frame(scratch.data(), plan.patches_per_time(), shape, static_cast<std::int32_t>(k), at);
  }
  return {};
}

}  // namespace stoker

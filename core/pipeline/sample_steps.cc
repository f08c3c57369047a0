#include "pipeline/sample_steps.h"

#include <fmt/format.h>

#include <utility>

#include "source/url.h"

namespace stoker {

Result<std::shared_ptr<const qwen_vl::QwenVl>> load_model(const LoaderSettings& settings) {
  const OutputSettings& output = settings.output;
  return qwen_vl::QwenVl::load(
      output.model, output.profile,
      {.engine = output.template_engine, .labels = output.labels, .make_renderer = settings.make_renderer});
}

Status read_sample(std::string_view line, const std::string& media_root, const OutputSettings& output,
                   const qwen_vl::QwenVl& model, MeasuredSample& sample, Sample& row, RowNotes* notes,
                   std::vector<qwen_vl::TurnRange>* turns) {
  std::string rewritten;
  if (output.user_code && output.user_code->has_row()) {
    STOKER_TRY(rewritten, output.user_code->row(line));
    line = rewritten;
  }
  STOKER_TRY(row, parse_row(line, {}, notes));
  if (!row.boxes.empty()) return {Reason::kMediaUnsupported, "boxes are not written by this version"};
  for (const MediaRef& media : row.media) {
    if (media.kind == MediaKind::kVideo) return {Reason::kMediaUnsupported, "clips are not prepared by this version"};
  }
  STOKER_TRY(sample.text, model.encode(row, turns));
  sample.images.resize(row.media.size());
  for (std::size_t k = 0; k < row.media.size(); ++k) {
    auto url = resolve_media(row.media[k].reference, media_root);
    if (!url.ok()) {
      sample.bad_media = row.media[k].reference;
      return std::move(url).status();
    }
    sample.images[k].url = std::move(url).value();
  }
  return {};
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
  STOKER_TRY(image.plan, model.plan_image(image.prepared));
  return {};
}

namespace {

/// Ends the conversation at the last place where it fits. @return Whether there is one.
bool truncate_turns(std::int64_t limit, const std::vector<qwen_vl::ImagePlan>& plans, MeasuredSample& sample) {
  for (auto cut = sample.text.cuts.rbegin(); cut != sample.text.cuts.rend(); ++cut) {
    qwen_vl::SampleText shorter = sample.text;
    shorter.ids.resize(static_cast<std::size_t>(cut->n_ids));
    shorter.is_trained.resize(static_cast<std::size_t>(cut->n_ids));
    shorter.n_images = cut->n_images;
    shorter.n_trained = cut->n_trained;
    const auto n_images = static_cast<std::size_t>(cut->n_images);
    const std::int64_t tokens = qwen_vl::expanded_length(shorter, std::span(plans).first(n_images));
    if (tokens > limit || cut->n_trained == 0) continue;
    shorter.cuts.resize(static_cast<std::size_t>(sample.text.cuts.rend() - cut));
    sample.text = std::move(shorter);
    sample.images.resize(n_images);
    sample.tokens = tokens;
    sample.is_truncated = true;
    return true;
  }
  return false;
}

}  // namespace

Status finish_measured(const OutputSettings& output, MeasuredSample& sample) {
  std::vector<qwen_vl::ImagePlan> plans;
  std::int64_t visual = 0;
  for (const MeasuredImage& image : sample.images) {
    plans.push_back(image.plan);
    if (!image.is_planned()) plans.back().n_tokens = 1;  // the placeholder itself
    visual += plans.back().n_tokens;
  }
  sample.tokens = qwen_vl::expanded_length(sample.text, plans);
  const std::int64_t limit = output.pack.tokens_per_pack;
  if (sample.tokens <= limit) return {};
  if (output.over_long == OverLong::kTruncateTurns && truncate_turns(limit, plans, sample)) return {};
  return {Reason::kSeqTooLong, fmt::format("length {}, limit {}, visual {}", sample.tokens, limit, visual)};
}

Status size_mismatch(const MeasuredImage& planned, qwen_vl::SizePx found) {
  const bool is_swapped = found.height == planned.upright.width && found.width == planned.upright.height;
  return {Reason::kMediaSizeMismatch,
          fmt::format("planned {}x{} (height x width, from the {}), found {}x{}{}", planned.upright.height,
                      planned.upright.width, planned.is_size_from_row ? "row" : "header", found.height, found.width,
                      is_swapped && planned.is_size_from_row
                          ? "; the row's sizes look swapped or not upright: set media.sizes: ignore"
                          : "")};
}

Status decode_measured(const OutputSettings& output, const qwen_vl::QwenVl& model, const MeasuredImage& planned,
                       std::span<const std::byte> object, PatchDecoder& decoder, std::uint8_t* patches) {
  const ImageOptions& options = output.image;
  STOKER_TRY(const Probe probed, probe(object, object.size(), options.limits));
  if (!probed.info) return {Reason::kImgTruncated, "the header is not complete"};
  const qwen_vl::SizePx found = upright_size(*probed.info, options);
  if (found != planned.upright) return size_mismatch(planned, found);
  const PatchGeometry to{.height_px = planned.plan.height_px,
                         .width_px = planned.plan.width_px,
                         .patch = model.config().patch,
                         .merge = model.config().merge};
  if (!output.user_code || !output.user_code->has_picture()) {
    return decoder.decode(object, *probed.info, to, options, patches);
  }
  STOKER_TRY(RgbImage picture, decode_rgb(object, options));
  STOKER_TRY(picture, output.user_code->picture(std::move(picture)));
  const qwen_vl::SizePx given{picture.height_px, picture.width_px};
  if (given != planned.prepared) {
    return {Reason::kUserCode,
            fmt::format("user_code.picture gave a picture of {}x{} (height x width) where {}x{} was planned: it must "
                        "keep the size, or declare it by a function `size(h, w)` of its own",
                        given.height, given.width, planned.prepared.height, planned.prepared.width)};
  }
  return decoder.patches_of(picture, to, options.resizer, patches);
}

}  // namespace stoker

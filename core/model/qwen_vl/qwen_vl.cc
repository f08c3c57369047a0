#include "model/qwen_vl/qwen_vl.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "base/hash.h"

namespace stoker::qwen_vl {

Result<std::shared_ptr<const QwenVl>> QwenVl::load(const std::filesystem::path& folder, const Profile& profile,
                                                   const TextOptions& options) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored)) {
    return Status(Reason::kModelFolder,
                  fmt::format("{} is no folder; `model` names a checkpoint folder on this machine", folder.string()));
  }
  STOKER_TRY(ProcessorConfig config, load_processor_config(folder));
  STOKER_TRY(auto tokenizer, text::Tokenizer::load(folder / "tokenizer.json"));
  STOKER_TRY(auto chat_template, text::ChatTemplate::load(folder, options.engine, options.make_renderer));
  std::shared_ptr<QwenVl> model(new QwenVl(config, tokenizer, std::move(chat_template), profile, options.labels));
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

QwenVl::QwenVl(ProcessorConfig config, std::shared_ptr<const text::Tokenizer> tokenizer,
               text::ChatTemplate chat_template, const Profile& profile, const LabelRule& labels)
    : config_(config),
      tokenizer_(std::move(tokenizer)),
      template_(std::move(chat_template)),
      profile_(profile),
      labels_(labels) {
  Digest digest;
  digest.add(tokenizer_->fingerprint());
  digest.add(template_.fingerprint());
  digest.add_int(template_.is_native() ? 1 : 0);
  for (const std::int64_t n :
       {std::int64_t{config_.patch}, std::int64_t{config_.merge}, std::int64_t{config_.temporal_patch},
        config_.limits.min_pixels, config_.limits.max_pixels}) {
    digest.add_int(n);
  }
  for (const double x : config_.mean) digest.add(&x, sizeof x);
  for (const double x : config_.std) digest.add(&x, sizeof x);
  digest.add(&config_.rescale, sizeof config_.rescale);
  digest.add(profile_.facts());
  fingerprint_ = digest.hex();
}

Result<ImagePlan> QwenVl::plan_image(SizePx size) const {
  STOKER_TRY(const SizePx target, smart_resize(size, config_.factor(), config_.limits));
  ImagePlan plan{.height_px = target.height,
                 .width_px = target.width,
                 .grid_h = target.height / config_.patch,
                 .grid_w = target.width / config_.patch};
  plan.n_tokens = static_cast<std::int32_t>(plan.n_patches() / (config_.merge * config_.merge));
  return plan;
}

SampleText QwenVl::dummy_text(bool with_image) const {
  SampleText text;
  text.ids = with_image ? std::vector<std::int32_t>{vision_start_, image_pad_, vision_end_}
                        : std::vector<std::int32_t>{end_of_text_};
  text.is_trained.assign(text.ids.size(), 0);
  text.n_images = with_image ? 1 : 0;
  return text;
}

PackShape QwenVl::dummy_shape(bool with_image) const {
  const int n_images = with_image ? 1 : 0;
  return {.tokens = with_image ? 3 : 1,
          .samples = 1,
          .images = n_images,
          .patches = n_images * config_.merge * config_.merge,
          .patch = config_.patch};
}

void QwenVl::write_dummy(const PackView& view, const SampleExtent& at, std::int64_t stride) const {
  const bool with_image = at.image_end > at.image_begin;
  const ImagePlan image{.height_px = config_.factor(),
                        .width_px = config_.factor(),
                        .grid_h = config_.merge,
                        .grid_w = config_.merge,
                        .n_tokens = 1};
  write_expanded(
      dummy_text(with_image), {&image, with_image ? 1U : 0U}, image_pad_, config_.merge,
      {view.input_ids + at.token_begin, view.labels + at.token_begin, view.position_ids + at.token_begin, stride});
  if (with_image) {
    std::int64_t* const grid = view.image_grid_thw + 3 * at.image_begin;
    grid[0] = 1;
    grid[1] = grid[2] = config_.merge;
    const std::int64_t n_bytes = PackShape{.patch = config_.patch}.patch_bytes();
    std::memset(view.image_patches + at.patch_begin * n_bytes, 255,
                static_cast<std::size_t>((at.patch_end - at.patch_begin) * n_bytes));
  }
}

}  // namespace stoker::qwen_vl

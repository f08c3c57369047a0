#include "model/qwen_vl/qwen_vl.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "base/hash.h"

namespace stoker::qwen_vl {

Result<std::shared_ptr<const QwenVl>> QwenVl::load(const std::filesystem::path& folder, const Profile& profile) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored)) {
    return Status(Reason::kModelFolder,
                  fmt::format("{} is no folder; `model` names a checkpoint folder on this machine", folder.string()));
  }
  STOKER_TRY(ProcessorConfig config, load_processor_config(folder));
  STOKER_TRY(auto tokenizer, text::Tokenizer::load(folder / "tokenizer.json"));
  STOKER_TRY(auto chat_template, text::ChatTemplate::load(folder));
  std::shared_ptr<QwenVl> model(new QwenVl(config, tokenizer, std::move(chat_template), profile));
  const std::array<std::pair<const char*, std::int32_t*>, 6> wanted = {{{"<|image_pad|>", &model->image_pad_},
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
  std::vector<std::int32_t> role;
  tokenizer->encode("assistant", {}, role);
  model->n_role_ids_ = role.size();
  return std::shared_ptr<const QwenVl>(std::move(model));
}

QwenVl::QwenVl(ProcessorConfig config, std::shared_ptr<const text::Tokenizer> tokenizer,
               text::ChatTemplate chat_template, const Profile& profile)
    : config_(config), tokenizer_(std::move(tokenizer)), template_(std::move(chat_template)), profile_(profile) {
  Digest digest;
  digest.add(tokenizer_->fingerprint());
  digest.add(template_.fingerprint());
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

Result<SampleText> QwenVl::encode(const Sample& sample, std::vector<TurnRange>* turns_out) const {
  STOKER_TRY(const std::vector<text::RenderedTurn> turns, template_.render(sample, {}));
  SampleText out;
  bool has_answer = false;
  for (const text::RenderedTurn& turn : turns) {
    const std::size_t begin = out.ids.size();
    const std::vector<text::ByteSpan> none;
    tokenizer_->encode(turn.text, profile_.content_tokens == ContentTokens::kGuard ? turn.content : none, out.ids);
    out.is_trained.resize(out.ids.size(), 0);
    if (turns_out != nullptr) {
      turns_out->push_back(
          {turn.turn, turn.is_assistant, static_cast<std::int64_t>(begin), static_cast<std::int64_t>(out.ids.size())});
    }
    if (!turn.is_assistant) continue;
    // The header is <|im_start|>, "assistant" (one token in the released vocabularies), and a line feed unless that
    // fused with the answer's.
    std::size_t first = begin + 1 + n_role_ids_;
    if (first < out.ids.size() && out.ids[first] == line_feed_) ++first;
    std::fill(out.is_trained.begin() + static_cast<std::ptrdiff_t>(std::min(first, out.ids.size())),
              out.is_trained.end(), std::uint8_t{1});
    has_answer = has_answer || out.ids.size() > first + 2;  // more than <|im_end|> and the line feed after it
  }
  out.n_images = static_cast<std::int32_t>(std::count(out.ids.begin(), out.ids.end(), image_pad_));
  out.n_trained = static_cast<std::int32_t>(std::count(out.is_trained.begin(), out.is_trained.end(), 1));
  for (std::size_t i = 0; i < out.ids.size();
       ++i) {  // raw content may put pads into answers: placeholders are never trained
    if (out.ids[i] == image_pad_ && out.is_trained[i] != 0) {
      out.is_trained[i] = 0;
      --out.n_trained;
    }
  }
  if (out.n_images != static_cast<std::int32_t>(sample.media.size())) {
    return Status(Reason::kMediaCount,
                  fmt::format("rendered placeholders {}, images {}", out.n_images, sample.media.size()));
  }
  if (!has_answer) return Status(Reason::kNoLossTokens, "no assistant turn says anything");
  return out;
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

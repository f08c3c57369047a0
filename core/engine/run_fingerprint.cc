#include "engine/run_fingerprint.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <string_view>
#include <utility>

#include "base/hash.h"
#include "pipeline/sample_steps.h"

namespace stoker {

std::string run_fingerprint(const OutputSettings& o, const std::string& data, const std::string& model_facts,
                            const qwen_vl::QwenVl* model) {
  std::string out;
  auto add = [&out](std::string_view name, std::initializer_list<std::string> values) {
    Digest digest;
    for (const std::string& value : values) digest.add(value);
    out += fmt::format("{}{}={}", out.empty() ? "" : " ", name, digest.hex().substr(0, 8));
  };
  add("data", {data});
  Digest rows;
  for (const DataSettings& entry : o.data) {
    rows.add(describe(entry.rows));
    rows.add_int(static_cast<std::int64_t>(entry.max_row_bytes));
  }
  add("rows", {rows.hex()});
  if (std::any_of(o.data.begin(), o.data.end(), [](const DataSettings& d) { return d.share != Share(); })) {
    Digest shares;
    for (const DataSettings& entry : o.data) {
      shares.add_int(static_cast<std::int64_t>(entry.share.kind));
      shares.add_int(static_cast<std::int64_t>(entry.share.value));
    }
    add("mixture", {shares.hex()});
  }
  add("model", {model_facts});
  add("seed", {std::to_string(o.seed)});
  add("shuffle", {std::to_string(static_cast<int>(o.shuffle))});
  if (o.shuffle == Shuffle::kChunked) {
    add("chunks", {std::to_string(o.chunks.chunk_bytes), std::to_string(o.chunks.chunks_per_group)});
  }
  if (o.split) {
    add("split", {o.split->key, std::to_string(o.split->held_out_millionths), std::to_string(o.uses_held_out)});
  }
  add("epochs", {o.epochs ? std::to_string(*o.epochs) : "endless"});
  add("window_samples", {std::to_string(o.window_samples)});
  const PackSettings& pack = o.pack;
  Digest packing;
  for (const std::string& value : {std::to_string(pack.tokens_per_pack), std::to_string(pack.packs_per_step),
                                   std::to_string(static_cast<int>(o.over_long))}) {
    packing.add(value);
  }
  // Settings that came later count where they change something.
  const std::pair<const char*, std::int64_t> later[] = {{"form", static_cast<std::int64_t>(pack.form)},
                                                        {"samples", pack.samples_per_pack - 1},
                                                        {"balance", static_cast<std::int64_t>(pack.balance)},
                                                        {"images", pack.max_images},
                                                        {"patches", pack.max_patches},
                                                        {"align", pack.align_samples_to - 1},
                                                        {"pad", pack.pad_to - 1},
                                                        {"uniform", static_cast<std::int64_t>(pack.vision_uniform)}};
  for (const auto& [name, value] : later) {
    if (value != 0) packing.add(fmt::format("{}={}", name, value));
  }
  out += fmt::format(" pack={}", packing.hex().substr(0, 8));
  if (const CostModel cost = model != nullptr ? cost_of(o, *model) : o.cost.value_or(CostModel{});
      cost != CostModel{}) {
    add("cost", {fmt::format("{} {} {} {}", cost.language_per_token, cost.language_per_token_pair,
                             cost.vision_per_patch, cost.vision_per_patch_pair)});
  }
  add("labels", {std::to_string(static_cast<int>(o.labels.train_on)),
                 std::to_string(static_cast<int>(o.labels.end_of_turn)), std::to_string(o.labels.roles)});
  if (o.box_form) add("box_text", {std::to_string(static_cast<int>(*o.box_form))});
  if (o.labels.weights == qwen_vl::LossWeights::kDeliver) add("loss_weights", {"deliver"});
  add("reference", {o.profile.facts()});
  add("media", {std::to_string(o.image.is_exif_applied), std::to_string(static_cast<int>(o.image.alpha)),
                std::to_string(static_cast<int>(o.image.grey16)), std::to_string(o.image.limits.max_pixels),
                std::to_string(o.image.limits.max_scans), std::to_string(o.image.is_end_optional),
                std::to_string(o.image.is_truncated_used), std::to_string(static_cast<int>(o.row_sizes))});
  if (o.changed_media != ChangedMedia::kAccept)
    add("media_changed", {std::to_string(static_cast<int>(o.changed_media))});
  if (o.user_code) add("user_code", {o.user_code->identity()});
  add("engine", {"1"});  // counts up with every change of order, packing or arithmetic
  return out;
}

}  // namespace stoker

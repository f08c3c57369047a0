#include "model/qwen3_vl/qwen3_vl.h"

namespace stoker::qwen3_vl {
namespace {

constexpr std::array<std::string_view, 4> kModelTypes = {"qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"};

constexpr qwen_vl::Family kFamily{
    .name = "Qwen3-VL",
    .model_types = kModelTypes,
    .processor_class = "Qwen3VLProcessor",
    .clip_tokens = qwen_vl::ClipTokens::kBlockPerTime,
    .clip_budget = qwen_vl::ClipBudget::kPerClip,
    .clip_defaults = {.limits = {.min_pixels = 128 * 32 * 32, .max_pixels = 768 * 32 * 32}},
};

}  // namespace

const qwen_vl::Family& family() { return kFamily; }

}  // namespace stoker::qwen3_vl

#include "model/qwen2_vl/qwen2_vl.h"

namespace stoker::qwen2_vl {
namespace {

constexpr std::array<std::string_view, 1> kModelTypes = {"qwen2_vl"};

constexpr qwen_vl::Family kFamily{
    .name = "Qwen2-VL",
    .model_types = kModelTypes,
    .processor_class = "Qwen2VLProcessor",
    .box_form = qwen_vl::BoxForm::kMarks,
    .clip_defaults = {.limits = {.min_pixels = 128 * 28 * 28, .max_pixels = 768 * 28 * 28},
                      .mean = {0.48145466, 0.4578275, 0.40821073},
                      .std = {0.26862954, 0.26130258, 0.27577711},
                      .max_video_tokens = 128000},
};

}  // namespace

const qwen_vl::Family& family() { return kFamily; }

}  // namespace stoker::qwen2_vl

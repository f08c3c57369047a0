#include "model/qwen2_5_vl/qwen2_5_vl.h"

namespace stoker::qwen2_5_vl {
namespace {

constexpr std::array<std::string_view, 1> kModelTypes = {"qwen2_5_vl"};

constexpr qwen_vl::Family kFamily{
    .name = "Qwen2.5-VL",
    .model_types = kModelTypes,
    .processor_class = "Qwen2_5_VLProcessor",
    .has_time_in_positions = true,
    .tokens_per_second = 4,  // the class's; released checkpoints say 2
    .box_units = qwen_vl::BoxUnits::kPixelsOfView,
    .clip_defaults = {.limits = {.min_pixels = 128 * 28 * 28, .max_pixels = 768 * 28 * 28},
                      .mean = {0.48145466, 0.4578275, 0.40821073},
                      .std = {0.26862954, 0.26130258, 0.27577711},
                      .max_video_tokens = 128000},
};

}  // namespace

const qwen_vl::Family& family() { return kFamily; }

}  // namespace stoker::qwen2_5_vl

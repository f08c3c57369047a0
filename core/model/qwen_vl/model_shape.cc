#include "model/qwen_vl/model_shape.h"

#include <algorithm>
#include <vector>

namespace stoker::qwen_vl {
namespace {

constexpr std::int64_t kMostLayers = 1 << 12;
constexpr std::int64_t kMostWidth = 1 << 18;
constexpr std::int64_t kMostWords = 1 << 24;

/// Rows of the up projections that a token meets in all layers.
std::int64_t mlp_rows(JsonFields& text, std::int64_t layers) {
  std::int64_t dense = 0, experts_per_token = 0, expert = 0, every = 1;
  std::vector<std::int64_t> dense_layers;
  text.integer("intermediate_size", 1, kMostWidth, dense);
  text.integer("num_experts_per_tok", 1, kMostLayers, experts_per_token);
  text.integer("moe_intermediate_size", 1, kMostWidth, expert);
  text.integer("decoder_sparse_step", 1, kMostLayers, every);
  text.integers("mlp_only_layers", dense_layers);
  if (experts_per_token == 0 || expert == 0) return layers * dense;
  std::int64_t rows = 0;
  for (std::int64_t i = 0; i < layers; ++i) {
    const bool is_dense =
        (i + 1) % every != 0 || std::find(dense_layers.begin(), dense_layers.end(), i) != dense_layers.end();
    rows += is_dense ? dense : experts_per_token * expert;
  }
  return rows;
}

bool read_text(JsonFields& text, ModelShape& shape) {
  std::int64_t heads = 0, head = 0;
  text.integer("num_hidden_layers", 1, kMostLayers, shape.layers);
  text.integer("hidden_size", 1, kMostWidth, shape.hidden);
  text.integer("num_attention_heads", 1, kMostLayers, heads);
  std::int64_t key_heads = heads;
  text.integer("num_key_value_heads", 1, kMostLayers, key_heads);
  if (heads > 0) head = shape.hidden / heads;
  text.integer("head_dim", 1, kMostWidth, head);
  text.integer("vocab_size", 1, kMostWords, shape.vocabulary);
  shape.query_width = heads * head;
  shape.key_width = key_heads * head;
  shape.mlp = mlp_rows(text, shape.layers);
  return text.status().ok() && shape.layers > 0 && shape.query_width > 0 && shape.mlp > 0 && shape.vocabulary > 0;
}

bool read_vision(JsonFields& vision, ModelShape& shape) {
  std::int64_t channels = 3, patch = 0, temporal = 2, window_px = 0;
  vision.integer("depth", 1, kMostLayers, shape.depth);
  if (vision.has("embed_dim")) {  // Qwen2-VL, whose hidden_size is the text model's
    double ratio = 4;
    vision.integer("embed_dim", 1, kMostWidth, shape.width);
    vision.number("mlp_ratio", ratio);
    if (ratio > 0 && ratio < 64) shape.vision_mlp = static_cast<std::int64_t>(static_cast<double>(shape.width) * ratio);
  } else {
    vision.integer("hidden_size", 1, kMostWidth, shape.width);
    vision.integer("intermediate_size", 1, kMostWidth, shape.vision_mlp);
  }
  vision.integer("in_channels", 1, 64, channels);
  vision.integer("in_chans", 1, 64, channels);
  vision.integer("patch_size", 1, 1024, patch);
  vision.integer("temporal_patch_size", 1, 64, temporal);
  vision.integer("spatial_merge_size", 1, 64, shape.merge);
  shape.patch_values = channels * temporal * patch * patch;
  std::vector<std::int64_t> deepstack, global;
  vision.integers("deepstack_visual_indexes", deepstack);
  vision.integers("fullatt_block_indexes", global);
  shape.mergers = 1 + static_cast<std::int64_t>(deepstack.size());
  shape.global_layers = shape.depth;
  if (!global.empty() && patch > 0) {  // Qwen2.5-VL: windows in most layers, and a gate in the MLP
    vision.integer("window_size", 1, 1 << 16, window_px);
    shape.global_layers = std::min(shape.depth, static_cast<std::int64_t>(global.size()));
    shape.window_patches = (window_px / patch) * (window_px / patch);
    shape.vision_mlp_matrices = 3;
  }
  return vision.status().ok() && shape.depth > 0 && shape.width > 0 && shape.vision_mlp > 0 && patch > 0;
}

}  // namespace

std::optional<ModelShape> read_shape(const JsonFields& config) {
  JsonFields root = config;
  std::optional<JsonFields> text = root.child("text_config");
  std::optional<JsonFields> vision = root.child("vision_config");
  ModelShape shape;
  if (!vision || !read_text(text ? *text : root, shape) || !read_vision(*vision, shape)) return std::nullopt;
  return shape;
}

}  // namespace stoker::qwen_vl

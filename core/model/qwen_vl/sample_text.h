#pragma once

#include <cstdint>
#include <vector>

namespace stoker::qwen_vl {

/// A conversation as token ids before its placeholders are expanded: one image pad per image, one video pad per clip
/// or, where times stand in the text, per temporal patch of a clip.
struct SampleText {
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> is_trained;  ///< (ids) 1 where the token has a label
  std::vector<float> loss_weights = {};  ///< (ids) of those that have one; empty: 1 each
  std::int32_t n_images = 0;             ///< image pads among the ids
  std::int32_t n_clip_pads = 0;          ///< video pads among the ids
  std::int32_t n_trained = 0;
  std::int32_t n_control_literals = 0;  ///< control tokens that stood in the row's content and stayed text

  /// A place where the conversation may end: behind a trained turn that says something.
  struct Cut {
    std::int32_t n_ids = 0, n_images = 0, n_clip_pads = 0, n_trained = 0;  ///< before it
  };
  std::vector<Cut> cuts = {};
};

/// One rendered turn among the ids of a SampleText, from its <|im_start|> to the line feed behind its <|im_end|>.
struct TurnRange {
  std::uint32_t turn = 0;  ///< index of the first turn of the row in it; kNoTurn if the template made it up
  bool is_assistant = false;
  std::int64_t token_begin = 0, token_end = 0;  ///< half-open

  static constexpr std::uint32_t kNoTurn = UINT32_MAX;
};

/// What an image becomes, known from its upright size alone.
struct ImagePlan {
  int height_px = 0;  ///< after the resize
  int width_px = 0;
  std::int32_t grid_h = 0;  ///< in patches; grid_t is 1
  std::int32_t grid_w = 0;
  std::int32_t n_tokens = 0;  ///< placeholders: grid_h * grid_w / merge^2

  std::int64_t n_patches() const { return std::int64_t{grid_h} * grid_w; }
};

/// What a clip becomes, known from the number, the times and the size of its frames.
struct ClipPlan {
  int height_px = 0;  ///< of every frame, after the resize
  int width_px = 0;
  int first_height_px = 0;  ///< qwen-vl-utils resizes listed pictures twice; 0 where there is one resize
  int first_width_px = 0;
  std::int32_t n_frames = 0;  ///< as given; the last one is repeated to fill grid_t temporal patches
  std::int32_t grid_t = 0;    ///< in patches
  std::int32_t grid_h = 0;
  std::int32_t grid_w = 0;
  std::int32_t n_pads = 0;      ///< video pads that stand for it before they are expanded: 1 or grid_t
  std::int32_t n_tokens = 0;    ///< video pads after: grid_t * grid_h * grid_w / merge^2
  double seconds_per_grid = 1;  ///< from one temporal patch to the next, for families whose positions count seconds

  std::int64_t n_patches() const { return std::int64_t{grid_t} * grid_h * grid_w; }
  std::int64_t patches_per_time() const { return std::int64_t{grid_h} * grid_w; }
};

}  // namespace stoker::qwen_vl

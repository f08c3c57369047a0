#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/qwen_vl/sample_text.h"
#include "model/qwen_vl/smart_resize.h"
#include "plan/order.h"

namespace stoker {

/// An image of a sample, before its pixels are read.
struct MeasuredImage {
  std::string url;
  qwen_vl::SizePx upright;   ///< of the file
  qwen_vl::SizePx prepared;  ///< after the user's own code; without one the same
  qwen_vl::ImagePlan plan;
  bool is_size_from_row = false;
  std::uint64_t object_bytes = 0;  ///< 0: not known yet
  Reason bad = Reason::kNone;      ///< why it cannot be used, as far as its header tells

  bool is_planned() const { return plan.n_tokens > 0; }  ///< false only where no header was to be read
};

/// One position of the order, measured: all that planning needs, and the text so that it is tokenised once.
struct MeasuredSample {
  std::uint64_t order_index = 0;
  OrderEntry entry;
  Status bad;  ///< why it cannot be used; ok for a usable sample
  std::string bad_media;
  std::int32_t bad_image = -1;  ///< the first image that is to blame; -1: the row
  qwen_vl::SampleText text;
  std::vector<MeasuredImage> images;
  std::int64_t tokens = 0;    ///< placeholders expanded
  bool is_truncated = false;  ///< turns were cut from its end
};

struct MeasuredWindow {
  std::uint64_t window = 0;
  std::vector<MeasuredSample> samples;
};

}  // namespace stoker

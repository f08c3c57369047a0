#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "data/lengths.h"
#include "data/sample.h"
#include "mem/buffer.h"
#include "model/qwen_vl/clip.h"
#include "model/qwen_vl/sample_text.h"
#include "model/qwen_vl/smart_resize.h"
#include "plan/order.h"

namespace stoker {

/// A small object that came whole when its header was read. Gives its bytes back to its measurer's allowance.
struct WholeObject {
  Buffer bytes;
  std::shared_ptr<std::atomic<std::size_t>> allowance;

  WholeObject(Buffer all, std::shared_ptr<std::atomic<std::size_t>> from)
      : bytes(std::move(all)), allowance(std::move(from)) {}
  ~WholeObject() { *allowance += bytes.size(); }
  WholeObject(const WholeObject&) = delete;
  WholeObject& operator=(const WholeObject&) = delete;
};

/// How this process came to know a sample's lengths.
enum class LengthsFrom : std::uint8_t {
  kHere,   ///< measured here
  kIndex,  ///< remembered by an earlier run, or another process
  kRank,   ///< told by another rank
};

/// An image of a sample, before its pixels are read.
struct MeasuredImage {
  Hash128 key;      ///< media_key of what `url` stands for
  std::string url;  ///< as resolve_media gives it; of an inline picture only its beginning, for people. Empty without
                    ///< MeasuredSample::has_text
  bool is_inline = false;        ///< its bytes stand in the row, as a data: URL
  qwen_vl::SizePx upright;       ///< of the file
  qwen_vl::SizePx prepared;      ///< after the user's own code; without one the same
  qwen_vl::SizeRequest request;  ///< what the row asks for itself
  qwen_vl::ImagePlan plan;       ///< of a frame only the size, once its clip is planned
  bool is_size_from_row = false;
  bool is_frame = false;                     ///< of a clip
  std::uint64_t object_bytes = 0;            ///< 0: not known yet
  std::uint64_t tag = 0;                     ///< tag_hash of the object when its header was read; 0: not known
  std::shared_ptr<const WholeObject> whole;  ///< if it came with its header and there was room; else null
  Reason bad = Reason::kNone;                ///< why it cannot be used, as far as its header tells

  bool is_planned() const { return plan.n_tokens > 0; }  ///< false only where no header was to be read
};

/// A clip that is given as a list of pictures.
struct MeasuredClip {
  std::vector<MeasuredImage> frames;
  double frames_per_s = 0;  ///< as in MediaRef
  double source_frames_per_s = 0;
  qwen_vl::SizeRequest request;
  qwen_vl::ClipPlan plan;

  bool is_planned() const { return plan.n_tokens > 0; }
};

/// One position of the order, measured: all that planning needs, and the text so that it is tokenised once. Where the
/// lengths came from elsewhere, the text and the URLs are missing until a pack of this rank takes the sample
/// (complete_sample).
struct MeasuredSample {
  std::uint64_t order_index = 0;
  OrderEntry entry;
  Status bad;  ///< why it cannot be used; ok for a usable sample
  std::string bad_media;
  std::int32_t bad_image = -1;  ///< the first picture that is to blame; -1: the row
  LengthsFrom from = LengthsFrom::kHere;
  bool has_text = true;  ///< false: `text` is empty but for its cuts, no picture has its URL
  qwen_vl::SampleText text;
  std::shared_ptr<Sample> waiting;    ///< the row while its text waits for the sizes of its pictures; else null
  std::vector<MeasuredImage> images;  ///< in reading order, clips apart
  std::vector<MeasuredClip> clips;
  std::int64_t tokens = 0;  ///< placeholders expanded
  std::int64_t n_ids = 0;   ///< before that
  std::int64_t n_trained = 0;
  bool is_truncated = false;  ///< turns were cut from its end

  /// Everything that is fetched and decoded: the images, then the frames of each clip.
  std::size_t n_pictures() const {
    std::size_t n = images.size();
    for (const MeasuredClip& clip : clips) n += clip.frames.size();
    return n;
  }
  const MeasuredImage& picture(std::size_t k) const {
    if (k < images.size()) return images[k];
    k -= images.size();
    for (const MeasuredClip& clip : clips) {
      if (k < clip.frames.size()) return clip.frames[k];
      k -= clip.frames.size();
    }
    return images.front();  // not reached: k is below n_pictures()
  }
  MeasuredImage& picture(std::size_t k) { return const_cast<MeasuredImage&>(std::as_const(*this).picture(k)); }
};

struct MeasuredWindow {
  std::uint64_t window = 0;
  std::vector<MeasuredSample> samples;
};

}  // namespace stoker

#include "data/pack.h"

#include <algorithm>
#include <cstring>

#include "base/hash.h"

namespace stoker {
namespace {

constexpr std::size_t kLine = 64;

class Carver {
 public:
  std::size_t take(std::int64_t n, std::size_t n_bytes_each) {
    const std::size_t at = end_;
    end_ += (static_cast<std::size_t>(n) * n_bytes_each + kLine - 1) / kLine * kLine;
    return at;
  }
  std::size_t end() const { return end_; }

 private:
  std::size_t end_ = 0;
};

template <typename T>
void move_range(T* array, std::int64_t to, std::int64_t begin, std::int64_t end, std::int64_t width = 1) {
  if (to != begin && end > begin) {
    std::memmove(array + to * width, array + begin * width,
                 static_cast<std::size_t>((end - begin) * width) * sizeof(T));
  }
}

/// Moves a range so that it begins where `now` ends, and counts it in.
void take_up(std::int64_t& begin, std::int64_t& end, std::int64_t& now) {
  end = now + end - begin;
  begin = now;
  now = end;
}

}  // namespace

PackLayout::PackLayout(const PackShape& shape) {
  Carver carve;
  image_patches = carve.take(shape.patches, static_cast<std::size_t>(shape.patch_bytes()));
  video_patches = carve.take(shape.clip_patches, static_cast<std::size_t>(shape.clip_patch_bytes()));
  input_ids = carve.take(shape.tokens, sizeof(std::int64_t));
  labels = carve.take(shape.tokens, sizeof(std::int64_t));
  position_ids = carve.take(4 * shape.tokens, sizeof(std::int64_t));
  loss_weights = carve.take(shape.has_loss_weights ? shape.tokens : 0, sizeof(float));
  image_grid_thw = carve.take(3 * shape.images, sizeof(std::int64_t));
  video_grid_thw = carve.take(3 * shape.clips, sizeof(std::int64_t));
  sample_ids = carve.take(shape.samples, sizeof(std::int64_t));
  cu_seqlens = carve.take(shape.samples + 1, sizeof(std::int32_t));
  cu_seqlens_padded = shape.has_padded_samples ? carve.take(shape.samples + 1, sizeof(std::int32_t)) : cu_seqlens;
  image_counts = carve.take(shape.samples, sizeof(std::int32_t));
  video_counts = carve.take(shape.samples, sizeof(std::int32_t));
  n_bytes = carve.end();
}

PackView::PackView(std::byte* base, const PackLayout& layout)
    : image_patches(reinterpret_cast<std::uint8_t*>(base + layout.image_patches)),
      video_patches(reinterpret_cast<std::uint8_t*>(base + layout.video_patches)),
      input_ids(reinterpret_cast<std::int64_t*>(base + layout.input_ids)),
      labels(reinterpret_cast<std::int64_t*>(base + layout.labels)),
      position_ids(reinterpret_cast<std::int64_t*>(base + layout.position_ids)),
      loss_weights(reinterpret_cast<float*>(base + layout.loss_weights)),
      image_grid_thw(reinterpret_cast<std::int64_t*>(base + layout.image_grid_thw)),
      video_grid_thw(reinterpret_cast<std::int64_t*>(base + layout.video_grid_thw)),
      sample_ids(reinterpret_cast<std::int64_t*>(base + layout.sample_ids)),
      cu_seqlens(reinterpret_cast<std::int32_t*>(base + layout.cu_seqlens)),
      cu_seqlens_padded(reinterpret_cast<std::int32_t*>(base + layout.cu_seqlens_padded)),
      image_counts(reinterpret_cast<std::int32_t*>(base + layout.image_counts)),
      video_counts(reinterpret_cast<std::int32_t*>(base + layout.video_counts)) {}

PackShape close_gaps(const PackView& view, const PackShape& planned, std::vector<SampleExtent>& extents,
                     const std::vector<bool>& is_kept, const PackShape& spare) {
  const std::vector<SampleExtent> old = extents;
  extents.clear();
  PackShape now = planned;
  now.tokens = now.images = now.patches = now.clips = now.clip_patches = 0;
  for (std::size_t i = 0; i < old.size(); ++i) {
    if (!is_kept[i]) continue;
    SampleExtent e = old[i];
    move_range(view.input_ids, now.tokens, e.token_begin, e.token_end);
    move_range(view.labels, now.tokens, e.token_begin, e.token_end);
    if (planned.has_loss_weights) move_range(view.loss_weights, now.tokens, e.token_begin, e.token_end);
    move_range(view.image_grid_thw, now.images, e.image_begin, e.image_end, 3);
    move_range(view.image_patches, now.patches, e.patch_begin, e.patch_end, planned.patch_bytes());
    move_range(view.video_grid_thw, now.clips, e.clip_begin, e.clip_end, 3);
    move_range(view.video_patches, now.clip_patches, e.clip_patch_begin, e.clip_patch_end, planned.clip_patch_bytes());
    take_up(e.token_begin, e.token_end, now.tokens);
    take_up(e.image_begin, e.image_end, now.images);
    take_up(e.patch_begin, e.patch_end, now.patches);
    take_up(e.clip_begin, e.clip_end, now.clips);
    take_up(e.clip_patch_begin, e.clip_patch_end, now.clip_patches);
    extents.push_back(e);
  }
  now.samples = static_cast<std::int64_t>(extents.size()) + spare.samples;
  now.tokens += spare.tokens;
  now.images += spare.images;
  now.patches += spare.patches;
  now.clips += spare.clips;
  now.clip_patches += spare.clip_patches;
  now.tail_tokens = planned.has_fixed_width ? planned.tokens - now.tokens : 0;
  now.tokens += now.tail_tokens;
  // position_ids: (4, planned T) -> (4, now T). Rows and samples ascend, and every target lies at or before its source.
  for (std::int64_t row = 0; row < 4; ++row) {
    std::size_t k = 0;
    for (std::size_t i = 0; i < old.size(); ++i) {
      if (!is_kept[i]) continue;
      move_range(view.position_ids, row * now.tokens + extents[k].token_begin,
                 row * planned.tokens + old[i].token_begin, row * planned.tokens + old[i].token_end);
      ++k;
    }
  }
  return now;
}

void write_frame(const std::uint8_t* frame, std::int64_t n_patches, const PackShape& shape, std::int32_t time,
                 std::uint8_t* clip) {
  const std::int64_t n_bytes = std::int64_t{shape.patch} * shape.patch;  // of one channel of one patch
  std::uint8_t* to = clip + time * n_bytes;
  for (std::int64_t i = 0; i < 3 * n_patches; ++i) {
    std::memcpy(to, frame, static_cast<std::size_t>(n_bytes));
    frame += n_bytes;
    to += shape.temporal_patch * n_bytes;
  }
}

std::int32_t write_boundaries(const PackView& view, std::span<const SampleExtent> extents) {
  std::int64_t longest = 0;
  std::int64_t n_tokens = 0;
  view.cu_seqlens[0] = view.cu_seqlens_padded[0] = 0;
  for (std::size_t i = 0; i < extents.size(); ++i) {
    const SampleExtent& e = extents[i];
    n_tokens += e.token_end - e.token_begin - e.n_pad;
    view.cu_seqlens[i + 1] = static_cast<std::int32_t>(n_tokens);
    view.cu_seqlens_padded[i + 1] = static_cast<std::int32_t>(e.token_end);
    view.sample_ids[i] = e.sample_id;
    view.image_counts[i] = static_cast<std::int32_t>(e.image_end - e.image_begin);
    view.video_counts[i] = static_cast<std::int32_t>(e.clip_end - e.clip_begin);
    longest = std::max(longest, e.token_end - e.token_begin);
  }
  return static_cast<std::int32_t>(longest);
}

std::string digest_of(const Batch& batch) {
  const PackLayout at = batch.layout();
  const PackShape& s = batch.shape;
  Digest digest;
  for (const std::int64_t n : {s.tokens, s.samples, s.images, s.patches, std::int64_t{s.patch}}) digest.add_int(n);
  auto add = [&](std::size_t offset, std::int64_t n, std::size_t n_bytes_each) {
    digest.add(batch.at(offset), static_cast<std::size_t>(n) * n_bytes_each);
  };
  add(at.image_patches, s.patches, static_cast<std::size_t>(s.patch_bytes()));
  add(at.input_ids, s.tokens, sizeof(std::int64_t));
  add(at.labels, s.tokens, sizeof(std::int64_t));
  add(at.position_ids, 4 * s.tokens, sizeof(std::int64_t));
  add(at.image_grid_thw, 3 * s.images, sizeof(std::int64_t));
  add(at.sample_ids, s.samples, sizeof(std::int64_t));
  add(at.cu_seqlens, s.samples + 1, sizeof(std::int32_t));
  add(at.image_counts, s.samples, sizeof(std::int32_t));
  if (s.clips > 0) {  // a pack without clips has the digest that it had before there were any
    for (const std::int64_t n : {s.clips, s.clip_patches, std::int64_t{s.temporal_patch}}) digest.add_int(n);
    add(at.video_patches, s.clip_patches, static_cast<std::size_t>(s.clip_patch_bytes()));
    add(at.video_grid_thw, 3 * s.clips, sizeof(std::int64_t));
    add(at.video_counts, s.samples, sizeof(std::int32_t));
  }
  if (s.has_loss_weights) add(at.loss_weights, s.tokens, sizeof(float));
  if (s.has_padded_samples) add(at.cu_seqlens_padded, s.samples + 1, sizeof(std::int32_t));
  return digest.hex();
}

}  // namespace stoker

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "mem/block.h"

namespace stoker {

/// How much of everything a pack holds.
struct PackShape {
  std::int64_t tokens = 0;       ///< T, what only fills up included
  std::int64_t tail_tokens = 0;  ///< of T, behind the last sample: one segment that belongs to none
  std::int64_t samples = 0;      ///< n, dummies included
  std::int64_t images = 0;       ///< k
  std::int64_t patches = 0;      ///< P
  std::int64_t clips = 0;
  std::int64_t clip_patches = 0;  ///< V
  bool has_loss_weights = false;
  bool has_padded_samples = false;  ///< samples may be filled up: `cu_seqlens_padded` is an array of its own
  bool has_fixed_width = false;     ///< T stays as planned when a sample turns out bad: the tail grows
  std::int32_t patch = 16;          ///< p; an image patch is (3, p, p) uint8
  std::int32_t temporal_patch = 2;  ///< t; a clip's patch is (3, t, p, p) uint8
  std::int32_t merge = 2;           ///< patches of a visual token, along each side
  std::int32_t image_token_id = 0, video_token_id = 0, pad_token_id = 0;

  std::int64_t patch_bytes() const { return std::int64_t{3} * patch * patch; }
  std::int64_t clip_patch_bytes() const { return temporal_patch * patch_bytes(); }
};

/// Where each array of a pack lies in its block: one write, final layout. Every array starts on a 64-byte line.
struct PackLayout {
  explicit PackLayout(const PackShape& shape);

  std::size_t image_patches = 0;   ///< uint8 (P, 3, p, p)
  std::size_t video_patches = 0;   ///< uint8 (V, 3, t, p, p)
  std::size_t input_ids = 0;       ///< int64 (T)
  std::size_t labels = 0;          ///< int64 (T)
  std::size_t position_ids = 0;    ///< int64 (4, T): text, t, h, w
  std::size_t loss_weights = 0;    ///< float32 (T) if `has_loss_weights`: of the label at the same place, 0 without one
  std::size_t image_grid_thw = 0;  ///< int64 (k, 3)
  std::size_t video_grid_thw = 0;  ///< int64 (clips, 3)
  std::size_t sample_ids = 0;      ///< int64 (n): position in the order; -1 for a dummy
  std::size_t cu_seqlens = 0;      ///< int32 (n + 1): sums of the samples' own lengths
  std::size_t cu_seqlens_padded = 0;  ///< int32 (n + 1): where they lie; `cu_seqlens` itself without has_padded_samples
  std::size_t image_counts = 0;       ///< int32 (n)
  std::size_t video_counts = 0;       ///< int32 (n)
  std::size_t n_bytes = 0;            ///< of the whole block

  /// The patches come first: of this many bytes, what follows is everything else.
  std::size_t pixel_bytes() const { return input_ids; }
};

/// A pack while it is being written: typed pointers into a block that must outlive it.
struct PackView {
  PackView(std::byte* base, const PackLayout& layout);

  std::uint8_t* image_patches;
  std::uint8_t* video_patches;
  std::int64_t* input_ids;
  std::int64_t* labels;
  std::int64_t* position_ids;
  float* loss_weights;  ///< not to be used without `has_loss_weights`
  std::int64_t* image_grid_thw;
  std::int64_t* video_grid_thw;
  std::int64_t* sample_ids;
  std::int32_t* cu_seqlens;
  std::int32_t* cu_seqlens_padded;
  std::int32_t* image_counts;
  std::int32_t* video_counts;
};

/// The place of one sample in a pack; half-open ranges.
struct SampleExtent {
  std::int64_t token_begin = 0, token_end = 0;
  std::int64_t image_begin = 0, image_end = 0;
  std::int64_t patch_begin = 0, patch_end = 0;
  std::int64_t clip_begin = 0, clip_end = 0;
  std::int64_t clip_patch_begin = 0, clip_patch_end = 0;
  std::int64_t sample_id = 0;
  std::int64_t n_pad = 0;  ///< of its tokens, the last ones, which only fill it up
};

/// Closes the gaps of samples that turned out bad after their place was given: what follows moves up, so that every
/// array stays contiguous. The one exception to one write.
///
/// @param planned  The shape that `view` was laid out with.
/// @param extents  (n) as planned, in pack order; kept ones are rewritten to their new place, the others removed.
/// @param is_kept  (n).
/// @param spare    Room to leave at the end for a dummy segment; must fit into what the removed samples leave.
/// @return The new shape, `spare` included; with has_fixed_width T is the planned one, and the tail what is left of
///         it. Rows of `position_ids` then have its T as their stride.
PackShape close_gaps(const PackView& view, const PackShape& planned, std::vector<SampleExtent>& extents,
                     const std::vector<bool>& is_kept, const PackShape& spare);

/// Puts one frame of a clip in its place in time.
/// @param frame    (n_patches, 3, p, p). @param time  Of t. @param clip  (n_patches, 3, t, p, p), one temporal patch.
void write_frame(const std::uint8_t* frame, std::int64_t n_patches, const PackShape& shape, std::int32_t time,
                 std::uint8_t* clip);

/// Writes cu_seqlens, cu_seqlens_padded, sample_ids, image_counts and video_counts from the extents.
/// @return The longest sample's tokens, what fills it up included.
std::int32_t write_boundaries(const PackView& view, std::span<const SampleExtent> extents);

/// Plain numbers about a batch, known on the host.
struct BatchCounts {
  std::int64_t tokens = 0;                  ///< T
  std::int64_t pad_tokens = 0;              ///< of them, those that only fill up: samples, and the tail
  std::int64_t target_tokens = 0;           ///< exact: labels that are not -100
  std::int64_t step_target_tokens = 0;      ///< the plan's, over all ranks and micro-batches of the step
  bool is_step_target_upper_bound = false;  ///< a sample of this pack was found bad after planning
  std::int64_t patches = 0;                 ///< of images
  std::int64_t video_patches = 0;           ///< of clips
  std::int64_t cost = 0;                    ///< as planned, thousands of FLOPs, forward and backward
  std::int64_t step = 0;
  std::int64_t micro_batch = 0;
  std::int64_t micro_batches_in_step = 0;
};

/// One finished pack. Its arrays live as long as the block that they lie in.
struct Batch {
  std::shared_ptr<const Block> block;
  std::shared_ptr<const Block> pixels =
      {};             ///< the patches, where they lie apart: `block` then has what is behind them
  PackShape shape;    ///< what is there
  PackShape planned;  ///< what the blocks were laid out for; gives the offsets
  std::int32_t max_seqlen = 0;
  BatchCounts counts;

  PackLayout layout() const { return PackLayout(planned); }
  /// The block that an array of the layout lies in.
  const std::shared_ptr<const Block>& block_at(std::size_t offset) const {
    return pixels && offset < layout().pixel_bytes() ? pixels : block;
  }
  /// @param offset  Of the layout.
  const std::byte* at(std::size_t offset) const {
    const std::size_t n_apart = pixels ? layout().pixel_bytes() : 0;
    return offset < n_apart ? pixels->data() + offset : block->data() + (offset - n_apart);
  }
  template <typename T>
  const T* array(std::size_t offset) const {
    return reinterpret_cast<const T*>(at(offset));
  }
};

/// 32 hexadecimal digits over every array and its size: equal batches, equal digests, on any machine of this byte
/// order.
std::string digest_of(const Batch& batch);

}  // namespace stoker

#include "data/pack.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/rng.h"

namespace stoker {
namespace {

/// A pack whose every element says which sample it belongs to and which place within it.
struct Marked {
  PackShape shape{.has_loss_weights = true, .patch = 2};
  std::vector<SampleExtent> extents;
  std::vector<std::byte> memory;

  explicit Marked(std::span<const int> tokens) {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const std::int64_t n_images = static_cast<std::int64_t>(i % 3);
      const std::int64_t n_patches = 4 * n_images;
      const std::int64_t n_clips = static_cast<std::int64_t>((i + 1) % 3) / 2;
      const std::int64_t n_clip_patches = 8 * n_clips;
      extents.push_back({shape.tokens, shape.tokens + tokens[i], shape.images, shape.images + n_images, shape.patches,
                         shape.patches + n_patches, shape.clips, shape.clips + n_clips, shape.clip_patches,
                         shape.clip_patches + n_clip_patches, static_cast<std::int64_t>(100 + i)});
      shape.tokens += tokens[i];
      shape.images += n_images;
      shape.patches += n_patches;
      shape.clips += n_clips;
      shape.clip_patches += n_clip_patches;
      ++shape.samples;
    }
    memory.resize(PackLayout(shape).n_bytes + 64);
    const PackView v = view();
    for (const SampleExtent& e : extents) fill(v, e, shape.tokens);
  }
  PackView view() {
    auto* base = memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64;
    return PackView(base, PackLayout(shape));
  }
  void fill(const PackView& v, const SampleExtent& e, std::int64_t stride) const {
    for (std::int64_t t = e.token_begin; t < e.token_end; ++t) {
      const std::int64_t mark = 1000 * e.sample_id + (t - e.token_begin);
      v.input_ids[t] = mark;
      v.labels[t] = -mark;
      v.loss_weights[t] = static_cast<float>(mark) / 2;
      for (std::int64_t row = 0; row < 4; ++row) v.position_ids[row * stride + t] = 10 * mark + row;
    }
    for (std::int64_t i = 3 * e.image_begin; i < 3 * e.image_end; ++i) v.image_grid_thw[i] = e.sample_id;
    const std::int64_t n = shape.patch_bytes();
    for (std::int64_t i = n * e.patch_begin; i < n * e.patch_end; ++i)
      v.image_patches[i] = static_cast<std::uint8_t>(e.sample_id);
    for (std::int64_t i = 3 * e.clip_begin; i < 3 * e.clip_end; ++i) v.video_grid_thw[i] = -e.sample_id;
    const std::int64_t m = shape.clip_patch_bytes();
    for (std::int64_t i = m * e.clip_patch_begin; i < m * e.clip_patch_end; ++i)
      v.video_patches[i] = static_cast<std::uint8_t>(e.sample_id + 1);
  }
};

// The oracle: a pack made from the kept samples alone.
TEST(CloseGaps, EqualsAPackWithoutTheRemovedSamples) {
  Rng rng(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<int> tokens(1 + rng.next() % 7);
    for (int& n : tokens) n = 1 + static_cast<int>(rng.next() % 5);
    std::vector<bool> keep(tokens.size());
    for (std::size_t i = 0; i < keep.size(); ++i) keep[i] = rng.next() % 2 == 0;
    Marked pack(tokens);
    const PackShape planned = pack.shape;
    const PackView view = pack.view();
    std::vector<SampleExtent> extents = pack.extents;
    const PackShape now = close_gaps(view, planned, extents, keep, {});

    std::int64_t n_tokens = 0, n_images = 0, n_patches = 0, n_clips = 0, n_clip_patches = 0;
    std::size_t k = 0;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (!keep[i]) continue;
      const SampleExtent& e = extents.at(k++);
      EXPECT_EQ(e.token_begin, n_tokens);
      for (std::int64_t t = e.token_begin; t < e.token_end; ++t) {
        const std::int64_t mark = 1000 * e.sample_id + (t - e.token_begin);
        EXPECT_EQ(view.input_ids[t], mark);
        EXPECT_EQ(view.labels[t], -mark);
        EXPECT_EQ(view.loss_weights[t], static_cast<float>(mark) / 2);
        for (std::int64_t row = 0; row < 4; ++row) EXPECT_EQ(view.position_ids[row * now.tokens + t], 10 * mark + row);
      }
      for (std::int64_t g = 3 * e.image_begin; g < 3 * e.image_end; ++g) EXPECT_EQ(view.image_grid_thw[g], e.sample_id);
      for (std::int64_t b = 12 * e.patch_begin; b < 12 * e.patch_end; ++b)
        EXPECT_EQ(view.image_patches[b], static_cast<std::uint8_t>(e.sample_id));
      for (std::int64_t g = 3 * e.clip_begin; g < 3 * e.clip_end; ++g) EXPECT_EQ(view.video_grid_thw[g], -e.sample_id);
      for (std::int64_t b = 24 * e.clip_patch_begin; b < 24 * e.clip_patch_end; ++b)
        EXPECT_EQ(view.video_patches[b], static_cast<std::uint8_t>(e.sample_id + 1));
      n_tokens = e.token_end;
      n_images = e.image_end;
      n_patches = e.patch_end;
      n_clips = e.clip_end;
      n_clip_patches = e.clip_patch_end;
    }
    EXPECT_EQ(k, extents.size());
    EXPECT_EQ(now.tokens, n_tokens);
    EXPECT_EQ(now.images, n_images);
    EXPECT_EQ(now.patches, n_patches);
    EXPECT_EQ(now.clips, n_clips);
    EXPECT_EQ(now.clip_patches, n_clip_patches);
    EXPECT_EQ(now.samples, static_cast<std::int64_t>(k));
  }
}

TEST(WriteBoundaries, GivesCumulativeLengths) {
  Marked pack(std::vector<int>{3, 2, 4});
  EXPECT_EQ(write_boundaries(pack.view(), pack.extents), 4);
  EXPECT_EQ(std::vector<std::int32_t>(pack.view().cu_seqlens, pack.view().cu_seqlens + 4),
            (std::vector<std::int32_t>{0, 3, 5, 9}));
  EXPECT_EQ(pack.view().image_counts[2], 2);
  EXPECT_EQ(pack.view().video_counts[1], 1);
  EXPECT_EQ(pack.view().sample_ids[1], 101);
}

TEST(Digest, SeesEveryArray) {
  auto pool = std::make_shared<BlockPool>(std::make_shared<MemoryBudget>(std::size_t{1} << 20));
  const PackShape shape{.tokens = 4, .samples = 2, .images = 1, .patches = 4, .patch = 2};
  const PackLayout at(shape);
  auto block = pool->acquire(at.n_bytes, {}, {}).value();
  std::fill_n(block->data(), block->size(), std::byte{0});
  const Batch batch{.block = block, .shape = shape, .planned = shape, .counts = {}};
  const std::string before = digest_of(batch);
  for (const std::size_t offset : {at.image_patches, at.input_ids, at.labels, at.position_ids, at.image_grid_thw,
                                   at.sample_ids, at.cu_seqlens, at.image_counts}) {
    block->data()[offset] = std::byte{1};
    EXPECT_NE(digest_of(batch), before) << offset;
    block->data()[offset] = std::byte{0};
  }
  EXPECT_EQ(digest_of(batch), before);
}

TEST(Digest, SeesClipsWhereThereAreAny) {
  auto pool = std::make_shared<BlockPool>(std::make_shared<MemoryBudget>(std::size_t{1} << 20));
  const PackShape shape{.tokens = 4, .samples = 2, .clips = 1, .clip_patches = 4, .patch = 2};
  const PackLayout at(shape);
  auto block = pool->acquire(at.n_bytes, {}, {}).value();
  std::fill_n(block->data(), block->size(), std::byte{0});
  const Batch batch{.block = block, .shape = shape, .planned = shape, .counts = {}};
  const std::string before = digest_of(batch);
  for (const std::size_t offset : {at.video_patches, at.video_patches + 95, at.video_grid_thw, at.video_counts}) {
    block->data()[offset] = std::byte{1};
    EXPECT_NE(digest_of(batch), before) << offset;
    block->data()[offset] = std::byte{0};
  }
}

TEST(Digest, SeesWeightsWhereThereAreAny) {
  auto pool = std::make_shared<BlockPool>(std::make_shared<MemoryBudget>(std::size_t{1} << 20));
  PackShape shape{.tokens = 4, .samples = 2, .patch = 2};
  const std::size_t without = PackLayout(shape).n_bytes;
  shape.has_loss_weights = true;
  const PackLayout at(shape);
  EXPECT_EQ(at.n_bytes, without + 64) << "float32 (4), on a line of its own";
  auto block = pool->acquire(at.n_bytes, {}, {}).value();
  std::fill_n(block->data(), block->size(), std::byte{0});
  const Batch batch{.block = block, .shape = shape, .planned = shape, .counts = {}};
  const std::string before = digest_of(batch);
  for (const std::size_t offset : {at.loss_weights, at.loss_weights + 15}) {
    block->data()[offset] = std::byte{1};
    EXPECT_NE(digest_of(batch), before) << offset;
    block->data()[offset] = std::byte{0};
  }
}

TEST(Digest, SeesWhereFilledUpSamplesLie) {
  auto pool = std::make_shared<BlockPool>(std::make_shared<MemoryBudget>(std::size_t{1} << 20));
  PackShape shape{.tokens = 4, .samples = 2, .patch = 2};
  const PackLayout without(shape);
  EXPECT_EQ(without.cu_seqlens_padded, without.cu_seqlens);
  shape.has_padded_samples = true;
  const PackLayout at(shape);
  auto block = pool->acquire(at.n_bytes, {}, {}).value();
  std::fill_n(block->data(), block->size(), std::byte{0});
  const Batch batch{.block = block, .shape = shape, .planned = shape, .counts = {}};
  const std::string before = digest_of(batch);
  for (const std::size_t offset : {at.cu_seqlens, at.cu_seqlens_padded + 11}) {
    block->data()[offset] = std::byte{1};
    EXPECT_NE(digest_of(batch), before) << offset;
    block->data()[offset] = std::byte{0};
  }
}

TEST(WriteFrame, PutsEveryChannelInItsPlaceInTime) {
  const PackShape shape{.patch = 2, .temporal_patch = 3};
  std::vector<std::uint8_t> frame(2 * 12), clip(2 * 36, 99);
  for (std::size_t i = 0; i < frame.size(); ++i) frame[i] = static_cast<std::uint8_t>(i);
  write_frame(frame.data(), 2, shape, 1, clip.data());
  for (std::size_t patch = 0; patch < 2; ++patch) {
    for (std::size_t c = 0; c < 3; ++c) {
      for (std::size_t t = 0; t < 3; ++t) {
        for (std::size_t i = 0; i < 4; ++i) {
          EXPECT_EQ(clip[((patch * 3 + c) * 3 + t) * 4 + i], t == 1 ? frame[(patch * 3 + c) * 4 + i] : 99);
        }
      }
    }
  }
}

}  // namespace
}  // namespace stoker

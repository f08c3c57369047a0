#include "data/pack_wire.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/rng.h"

namespace stoker {
namespace {

/// A batch of this shape in one block, every byte of it from `byte_at`.
template <typename ByteAt>
Batch batch_of(const PackShape& shape, ByteAt byte_at) {
  auto memory = std::make_shared<std::vector<std::byte>>(PackLayout(shape).n_bytes);
  for (std::size_t i = 0; i < memory->size(); ++i) (*memory)[i] = static_cast<std::byte>(byte_at(i));
  const std::span<const std::byte> bytes(*memory);
  return {.block = block_over(bytes, std::move(memory)), .shape = shape, .planned = shape, .counts = {}};
}

Batch random_batch(const PackShape& shape, std::uint64_t seed) {
  Rng rng(seed);
  return batch_of(shape, [&rng](std::size_t) { return rng.next() % 256; });
}

/// What comes out where `batch` went in, without a copy of the patches.
Batch sent(const Batch& batch) {
  const auto tail = squeeze(batch);
  EXPECT_TRUE(tail.ok()) << tail.status().to_string();
  auto block = expand(*tail, batch.layout());
  EXPECT_TRUE(block.ok()) << block.status().to_string();
  Batch out = batch;
  out.pixels = block_over(pixels_of(batch), batch.block);
  out.block = std::move(block).value();
  return out;
}

std::vector<PackShape> shapes() {
  return {{.tokens = 7, .samples = 2, .images = 1, .patches = 4, .patch = 2},
          {.tokens = 40, .samples = 3, .clips = 2, .clip_patches = 12, .has_loss_weights = true, .patch = 4},
          {.tokens = 9,
           .tail_tokens = 2,
           .samples = 1,
           .images = 2,
           .patches = 8,
           .clips = 1,
           .clip_patches = 4,
           .has_padded_samples = true,
           .has_fixed_width = true,
           .patch = 2},
          {.tokens = 3, .samples = 1},
          {}};
}

TEST(PackWire, GivesEveryByteBack) {
  for (const PackShape& shape : shapes()) {
    const Batch batch = random_batch(shape, 3);
    const Batch got = sent(batch);
    EXPECT_EQ(digest_of(got), digest_of(batch));
    const std::size_t n_pixels = batch.layout().pixel_bytes(), n = batch.layout().n_bytes;
    EXPECT_EQ(got.pixels->size(), n_pixels);
    EXPECT_EQ(got.block->size(), n - n_pixels);
    EXPECT_EQ(std::memcmp(got.at(n_pixels), batch.block->data() + n_pixels, n - n_pixels), 0);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(got.block->data()) % 64, 0U);
    if (n_pixels > 0) {
      EXPECT_EQ(got.at(0), batch.block->data()) << "patches are not copied";
    }
    EXPECT_EQ(*squeeze(got), *squeeze(batch)) << "a pack whose patches lie apart can be sent on";
  }
}

TEST(PackWire, EveryArrayLiesInTheBlockThatItIsSaidToLieIn) {
  const Batch got = sent(random_batch(shapes()[2], 4));
  const PackLayout at = got.layout();
  for (const std::size_t offset :
       {at.image_patches, at.video_patches, at.input_ids, at.labels, at.position_ids, at.image_grid_thw,
        at.video_grid_thw, at.sample_ids, at.cu_seqlens, at.cu_seqlens_padded, at.image_counts, at.video_counts}) {
    const Block& block = *got.block_at(offset);
    EXPECT_EQ(&block == got.pixels.get(), offset < at.input_ids);
    EXPECT_GE(got.at(offset), block.data());
    EXPECT_LT(got.at(offset), block.data() + block.size());
  }
}

// Pictures of 1,024 x 1,024 pixels with 400 tokens of text each, ids drawn evenly from a large vocabulary: worse than
// any text. The bar for everything on the wire is 3,100 bytes for each visual token, 3,072 of them pixels.
TEST(PackWire, ArraysTakeFewBytesForEachVisualToken) {
  constexpr std::int64_t kPictures = 11, kVisual = 1024, kText = 400, kSide = 32;
  const PackShape shape{.tokens = kPictures * (kVisual + kText), .samples = kPictures, .images = kPictures};
  std::vector<std::byte> memory(PackLayout(shape).n_bytes);
  const PackView view(memory.data(), PackLayout(shape));
  Rng rng(5);
  std::int64_t i = 0;
  for (std::int64_t sample = 0; sample < kPictures; ++sample) {
    for (std::int64_t k = 0; k < kVisual + kText; ++k, ++i) {
      const bool is_visual = k < kVisual;
      view.input_ids[i] = is_visual ? 151655 : static_cast<std::int64_t>(rng.next() % 151643);
      view.labels[i] = is_visual || k < kVisual + kText / 4 ? -100 : view.input_ids[i];
      const std::int64_t behind = kSide + k - kVisual;
      view.position_ids[i] = k;
      view.position_ids[shape.tokens + i] = is_visual ? 0 : behind;
      view.position_ids[2 * shape.tokens + i] = is_visual ? k / kSide : behind;
      view.position_ids[3 * shape.tokens + i] = is_visual ? k % kSide : behind;
    }
  }
  const Batch batch{.block = block_over(memory, nullptr), .shape = shape, .planned = shape, .counts = {}};
  EXPECT_LT(squeeze(batch)->size(), 8 * kPictures * kVisual / 5) << "bytes for five visual tokens";
}

TEST(PackWire, RefusesWhatIsNotWhole) {
  const PackShape shape = shapes()[1];
  const Batch batch = random_batch(shape, 6);
  const std::string whole = *squeeze(batch);
  const auto reason = [&](std::string_view bytes, const PackLayout& layout) {
    return expand(bytes, layout).status().reason();
  };
  for (std::size_t n = 0; n < whole.size(); ++n) {
    EXPECT_EQ(reason(whole.substr(0, n), batch.layout()), Reason::kPeerMismatch) << n << " bytes";
  }
  EXPECT_EQ(reason(whole + '\0', batch.layout()), Reason::kPeerMismatch);
  EXPECT_EQ(reason(whole + whole, batch.layout()), Reason::kPeerMismatch);
  for (std::size_t i = 0; i < whole.size(); ++i) {
    std::string changed = whole;
    changed[i] = static_cast<char>(changed[i] ^ 4);
    const auto got = expand(changed, batch.layout());
    if (got.ok()) {  // a bit of the frame's head that says nothing of the content
      EXPECT_EQ(std::memcmp((*got)->data(), batch.at(batch.layout().pixel_bytes()), (*got)->size()), 0) << i;
    } else {
      EXPECT_EQ(got.status().reason(), Reason::kPeerMismatch) << i;
    }
  }
}

// A short message must not make anybody allocate what it merely announces.
TEST(PackWire, RefusesSizesThatAreNotThePlans) {
  PackShape shape = shapes()[0];
  const std::string whole = *squeeze(random_batch(shape, 7));
  for (const std::int64_t tokens : {std::int64_t{6}, std::int64_t{80}, std::int64_t{1} << 24, std::int64_t{1} << 39}) {
    shape.tokens = tokens;
    EXPECT_EQ(expand(whole, PackLayout(shape)).status().reason(), Reason::kPeerMismatch) << tokens;
  }
}

}  // namespace
}  // namespace stoker

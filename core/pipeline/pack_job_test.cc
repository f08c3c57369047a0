#include "pipeline/pack_job.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>

#include "base/rng.h"
#include "plan/padding.h"

namespace stoker {
namespace {

using qwen_vl::ClipPlan;
using qwen_vl::ImagePlan;

std::shared_ptr<const qwen_vl::QwenVl> model() {
  static const auto one =
      qwen_vl::QwenVl::load(std::string(STOKER_TESTDATA) + "/qwen3-vl", *find_profile("stoker")).value();
  return one;
}

std::int64_t visual_tokens(std::int64_t n_patches) { return n_patches / 4; }

/// A sample of `n_text` tokens and its media, as measuring leaves it; every id says which sample it belongs to.
MeasuredSample sample_of(std::uint64_t order_index, int n_text, int n_images, int n_clips) {
  MeasuredSample out;
  out.order_index = order_index;
  auto show = [&](std::int32_t pad) { out.text.ids.push_back(pad); };
  for (int k = 0; k < n_images; ++k) {
    MeasuredImage image;
    image.url = "image";
    image.plan = ImagePlan{.grid_h = 2 + 2 * (k % 2), .grid_w = 4};
    image.plan.n_tokens = static_cast<std::int32_t>(visual_tokens(image.plan.n_patches()));
    show(model()->image_pad());
    out.images.push_back(std::move(image));
  }
  for (int c = 0; c < n_clips; ++c) {
    MeasuredClip clip;
    clip.plan = ClipPlan{.n_frames = 2, .grid_t = 1, .grid_h = 4, .grid_w = 2, .n_pads = 1, .n_tokens = 2};
    clip.frames.resize(2);
    for (MeasuredImage& frame : clip.frames) frame.url = "frame";
    show(model()->video_pad());
    out.clips.push_back(std::move(clip));
  }
  for (int i = 0; i < n_text; ++i) out.text.ids.push_back(static_cast<std::int32_t>(1000 * (order_index + 1)) + i);
  out.text.is_trained.assign(out.text.ids.size(), 0);
  out.text.is_trained.back() = out.text.ids.size() > 1 ? 1 : 0;
  out.text.n_trained = out.text.is_trained.back();
  out.n_trained = out.text.n_trained;
  out.text.n_images = n_images;
  out.text.n_clip_pads = n_clips;
  out.n_ids = static_cast<std::int64_t>(out.text.ids.size());
  out.tokens = static_cast<std::int64_t>(out.text.ids.size());
  for (const MeasuredImage& image : out.images) out.tokens += image.plan.n_tokens - 1;
  for (const MeasuredClip& clip : out.clips) out.tokens += clip.plan.n_tokens - clip.plan.n_pads;
  return out;
}

/// What a sample's tokens are, by themselves.
struct Alone {
  std::vector<std::int64_t> ids, labels, positions;
  qwen_vl::NextPosition next;

  explicit Alone(const MeasuredSample& sample) {
    std::vector<ImagePlan> images;
    std::vector<ClipPlan> clips;
    for (const MeasuredImage& image : sample.images) images.push_back(image.plan);
    for (const MeasuredClip& clip : sample.clips) clips.push_back(clip.plan);
    const auto n = static_cast<std::size_t>(sample.tokens);
    ids.resize(n);
    labels.resize(n);
    positions.resize(4 * n);
    next = qwen_vl::write_expanded(sample.text, {images, clips}, model()->expansion(),
                                   {ids.data(), labels.data(), positions.data(), sample.tokens});
  }
};

PackSettings settings_with(std::int64_t align, std::int64_t pad_to, VisionUniform uniform) {
  PackSettings settings;
  settings.tokens_per_pack = 512;
  settings.align_samples_to = align;
  settings.pad_to = pad_to;
  settings.vision_uniform = uniform;
  auto tokens = [](bool image, bool clip) { return model()->dummy_shape(image, clip).tokens; };
  settings.dummy = {.text = tokens(false, false),
                    .image = tokens(true, false),
                    .video = tokens(false, true),
                    .image_and_video = tokens(true, true)};
  return settings;
}

/// Runs a pack in which the pictures of `bad` samples cannot be had; the parts come in an order of `shuffle`'s.
ReadyPack built(std::vector<MeasuredSample> samples, const PackSettings& settings, const std::vector<bool>& bad,
                std::uint64_t shuffle) {
  static const auto pool = std::make_shared<BlockPool>(std::make_shared<MemoryBudget>(std::size_t{1} << 26));
  PackTask task;
  auto window = std::make_shared<MeasuredWindow>();
  window->samples = std::move(samples);
  for (std::uint32_t i = 0; i < window->samples.size(); ++i) task.members.push_back(i);
  task.window = window;
  const std::size_t n_bytes = PackLayout(shape_of(task, settings, *model())).n_bytes;
  auto block = pool->acquire(n_bytes, {}, {}).value();
  std::fill_n(block->data(), block->size(), static_cast<std::byte>(shuffle));  // what a block held before is no matter
  std::optional<ReadyPack> ready;
  PackJob job(task, settings, model(), block, [&](ReadyPack pack) { ready.emplace(std::move(pack)); });
  struct Piece {
    std::size_t sample, picture;
    bool is_text;
  };
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < window->samples.size(); ++i) {
    pieces.push_back({i, 0, true});
    for (std::size_t k = 0; k < window->samples[i].n_pictures(); ++k) pieces.push_back({i, k, false});
  }
  Rng rng(shuffle);
  for (std::size_t n = pieces.size(); n > 1; --n) std::swap(pieces[n - 1], pieces[rng.next() % n]);
  for (const Piece& piece : pieces) {
    if (piece.is_text) {
      job.write_text(piece.sample);
      continue;
    }
    const MeasuredSample& sample = window->samples[piece.sample];
    const auto mark = static_cast<int>(sample.order_index + 1);
    if (bad[piece.sample]) {
      job.picture_done(piece.sample, piece.picture, Status(Reason::kImgCorrupt, "it is damaged"));
      continue;
    }
    if (piece.picture < sample.images.size()) {
      const auto n = sample.images[piece.picture].plan.n_patches() * model()->empty_shape().patch_bytes();
      std::fill_n(job.patches_of(piece.sample, piece.picture), n, mark);
    } else if (piece.picture % 2 == sample.images.size() % 2) {
      const std::size_t clip = (piece.picture - sample.images.size()) / 2;
      const auto n = sample.clips[clip].plan.n_patches() * model()->empty_shape().clip_patch_bytes();
      std::fill_n(job.clip_patches_of(piece.sample, clip), n, mark);
    }
    job.picture_done(piece.sample, piece.picture, {});
  }
  if (pieces.empty()) job.finish_empty();
  EXPECT_TRUE(ready.has_value());
  return std::move(*ready);
}

/// Holds a finished pack against its samples, one by one.
class Reader {
 public:
  explicit Reader(const Batch& batch)
      : batch_(batch), s_(batch.shape), v_(const_cast<std::byte*>(batch.block->data()), batch.layout()) {}

  void sample(const MeasuredSample& sample) {
    const Alone want(sample);
    const std::int64_t n = sample.tokens;
    const std::int64_t at = begin();
    ASSERT_EQ(v_.cu_seqlens[i_ + 1] - v_.cu_seqlens[i_], n);
    ASSERT_LE(at + n, v_.cu_seqlens_padded[i_ + 1]);
    for (std::int64_t t = 0; t < n; ++t) {
      const auto u = static_cast<std::size_t>(t);
      ASSERT_EQ(v_.input_ids[at + t], want.ids[u]);
      ASSERT_EQ(v_.labels[at + t], want.labels[u]);
      for (std::int64_t row = 0; row < 4; ++row)
        ASSERT_EQ(v_.position_ids[row * s_.tokens + at + t], want.positions[static_cast<std::size_t>(row * n + t)]);
      targets += want.labels[u] != -100;
    }
    filling(at + n, v_.cu_seqlens_padded[i_ + 1], n, want.next.mrope);
    EXPECT_EQ(v_.sample_ids[i_], static_cast<std::int64_t>(sample.order_index));
    media(sample, static_cast<int>(sample.order_index + 1));
    next();
  }

  /// One segment of its own, never trained. @return whether it holds (an image, a clip)
  std::pair<bool, bool> dummy() {
    const std::int64_t at = begin();
    const std::int64_t n = v_.cu_seqlens[i_ + 1] - v_.cu_seqlens[i_];
    EXPECT_EQ(v_.sample_ids[i_], -1);
    EXPECT_EQ(v_.position_ids[at], 0);
    const bool image = v_.image_counts[i_] == 1;
    const bool clip = v_.video_counts[i_] == 1;
    EXPECT_EQ(n, model()->dummy_shape(image, clip).tokens);
    EXPECT_EQ(std::count(v_.input_ids + at, v_.input_ids + at + n, model()->image_pad()), image ? 1 : 0);
    EXPECT_EQ(std::count(v_.input_ids + at, v_.input_ids + at + n, model()->video_pad()), clip ? 1 : 0);
    for (std::int64_t t = at; t < at + n; ++t) EXPECT_EQ(v_.labels[t], -100);
    filling(at + n, v_.cu_seqlens_padded[i_ + 1], n, v_.position_ids[s_.tokens + at + n - 1] + 1);
    MeasuredSample white = sample_of(0, 1, 0, 0);
    if (image) white.images.emplace_back().plan = {.grid_h = 2, .grid_w = 2, .n_tokens = 1};
    if (clip) white.clips.emplace_back().plan = {.grid_t = 1, .grid_h = 2, .grid_w = 2, .n_pads = 1, .n_tokens = 1};
    media(white, 255);
    next();
    return {image, clip};
  }

  void end() {
    EXPECT_EQ(i_, s_.samples);
    EXPECT_EQ(image_, s_.images);
    EXPECT_EQ(patch_, s_.patches);
    EXPECT_EQ(clip_, s_.clips);
    EXPECT_EQ(clip_patch_, s_.clip_patches);
    EXPECT_EQ(begin(), s_.tokens - s_.tail_tokens);
    filling(begin(), s_.tokens, 0, 0);
    EXPECT_EQ(batch_.counts.tokens, s_.tokens);
    EXPECT_EQ(batch_.counts.pad_tokens, s_.tokens - v_.cu_seqlens[i_]);
    EXPECT_EQ(batch_.counts.target_tokens, targets);
    EXPECT_EQ(batch_.max_seqlen, longest_);
  }

  std::int64_t targets = 0;

 private:
  std::int64_t begin() const { return v_.cu_seqlens_padded[i_]; }
  void next() {
    longest_ = std::max(longest_, v_.cu_seqlens_padded[i_ + 1] - v_.cu_seqlens_padded[i_]);
    ++i_;
  }
  void filling(std::int64_t from, std::int64_t to, std::int64_t text, std::int64_t mrope) {
    for (std::int64_t t = from; t < to; ++t) {
      ASSERT_EQ(v_.input_ids[t], s_.pad_token_id);
      ASSERT_EQ(v_.labels[t], -100);
      ASSERT_EQ(v_.position_ids[t], text + t - from);
      for (std::int64_t row = 1; row < 4; ++row) ASSERT_EQ(v_.position_ids[row * s_.tokens + t], mrope + t - from);
    }
  }
  void media(const MeasuredSample& sample, int mark) {
    EXPECT_EQ(v_.image_counts[i_], static_cast<std::int32_t>(sample.images.size()));
    EXPECT_EQ(v_.video_counts[i_], static_cast<std::int32_t>(sample.clips.size()));
    auto all = [mark](const std::uint8_t* from, std::int64_t n) {
      return std::all_of(from, from + n, [mark](std::uint8_t x) { return x == mark; });
    };
    for (const MeasuredImage& image : sample.images) {
      const std::int64_t* grid = v_.image_grid_thw + 3 * image_++;
      EXPECT_EQ(std::vector<std::int64_t>(grid, grid + 3),
                (std::vector<std::int64_t>{1, image.plan.grid_h, image.plan.grid_w}));
      const std::int64_t n = image.plan.n_patches();
      EXPECT_TRUE(all(v_.image_patches + patch_ * s_.patch_bytes(), n * s_.patch_bytes()));
      patch_ += n;
    }
    for (const MeasuredClip& clip : sample.clips) {
      const std::int64_t* grid = v_.video_grid_thw + 3 * clip_++;
      EXPECT_EQ(std::vector<std::int64_t>(grid, grid + 3),
                (std::vector<std::int64_t>{clip.plan.grid_t, clip.plan.grid_h, clip.plan.grid_w}));
      const std::int64_t n = clip.plan.n_patches();
      EXPECT_TRUE(all(v_.video_patches + clip_patch_ * s_.clip_patch_bytes(), n * s_.clip_patch_bytes()));
      clip_patch_ += n;
    }
  }

  const Batch& batch_;
  const PackShape& s_;
  const PackView v_;
  std::int64_t i_ = 0, image_ = 0, patch_ = 0, clip_ = 0, clip_patch_ = 0;
  std::int32_t longest_ = 0;
};

// Whatever a pack's samples, settings and late bad samples: each sample is what it is alone, the plan's promises of
// vision are kept by one dummy segment, and T is the plan's where it is fixed.
TEST(PackJob, EverySampleIsWhatItIsAlone) {
  Rng rng(5);
  int n_dummies = 0;
  int n_tails = 0;
  for (int round = 0; round < 300; ++round) {
    const std::int64_t align = std::int64_t{1} << (rng.next() % 4);
    const std::int64_t pad_to = std::array<std::int64_t, 4>{1, 8, 64, 512}[rng.next() % 4];
    const auto uniform = static_cast<VisionUniform>(rng.next() % 3);
    const PackSettings settings = settings_with(align, pad_to, uniform);
    std::vector<MeasuredSample> samples(rng.next() % 5);
    std::vector<bool> bad(samples.size());
    PackPlan plan;
    for (std::size_t i = 0; i < samples.size(); ++i) {
      const int n_images = static_cast<int>(rng.next() % 5) / 2;
      const int n_clips = rng.next() % 4 == 0 ? 1 : 0;
      // As in every row that has media: each is surrounded by two tokens.
      const int n_text = 2 * (n_images + n_clips) + static_cast<int>(rng.next() % 9) + 1;
      samples[i] = sample_of(i, n_text, n_images, n_clips);
      bad[i] = n_images + n_clips > 0 && rng.next() % 2 == 0;
      plan.members.push_back(static_cast<std::uint32_t>(i));
      plan.images += n_images;
      plan.videos += n_clips;
      plan.aligned_tokens += aligned_tokens(settings, samples[i].tokens);
    }
    finish_pack(settings, 0, plan);
    const ReadyPack ready = built(samples, settings, bad, static_cast<std::uint64_t>(round));
    ASSERT_EQ(ready.batch.planned.tokens, plan.total_tokens) << "the planner's arithmetic is the builder's";
    ASSERT_LE(ready.batch.shape.tokens, plan.total_tokens);
    ASSERT_TRUE(pad_to == 1 || ready.batch.shape.tokens == plan.total_tokens);

    Reader reader(ready.batch);
    std::int64_t images = 0, clips = 0, n_kept = 0;
    for (std::size_t i = 0; i < samples.size(); ++i) {
      if (bad[i]) continue;
      reader.sample(samples[i]);
      images += static_cast<std::int64_t>(samples[i].images.size());
      clips += static_cast<std::int64_t>(samples[i].clips.size());
      ++n_kept;
    }
    if (n_kept < ready.batch.shape.samples) {
      const auto [image, clip] = reader.dummy();
      EXPECT_TRUE(image || clip || n_kept == 0);
      EXPECT_FALSE(image && images > 0);
      EXPECT_FALSE(clip && clips > 0);
      ++n_dummies;
    }
    reader.end();
    ASSERT_GE(ready.batch.shape.samples, 1);
    EXPECT_EQ(ready.batch.shape.images > 0, plan.images > 0 || plan.needs_image_dummy);
    EXPECT_EQ(ready.batch.shape.clips > 0, plan.videos > 0 || plan.needs_video_dummy);
    EXPECT_EQ(ready.found_late.size(), static_cast<std::size_t>(std::count(bad.begin(), bad.end(), true)));
    n_tails += ready.batch.shape.tail_tokens > 0 ? 1 : 0;
    if (HasFailure()) FAIL() << "round " << round;
    EXPECT_EQ(digest_of(built(samples, settings, bad, static_cast<std::uint64_t>(round + 7)).batch),
              digest_of(ready.batch))
        << "neither the order of parts nor what the memory held before changes a pack";
  }
  EXPECT_GT(n_dummies, 50);
  EXPECT_GT(n_tails, 50);
}

TEST(PackJob, WithoutAlignmentBothBoundariesAreOneArray) {
  const ReadyPack one =
      built({sample_of(0, 3, 0, 0), sample_of(1, 2, 0, 0)}, settings_with(1, 1, {}), {false, false}, 1);
  EXPECT_EQ(one.batch.layout().cu_seqlens, one.batch.layout().cu_seqlens_padded);
  const ReadyPack two =
      built({sample_of(0, 3, 0, 0), sample_of(1, 2, 0, 0)}, settings_with(4, 1, {}), {false, false}, 1);
  const PackLayout at = two.batch.layout();
  const auto values = [&](std::size_t offset) {
    const auto* first = two.batch.array<std::int32_t>(offset);
    return std::vector<std::int32_t>(first, first + 3);
  };
  EXPECT_EQ(values(at.cu_seqlens), (std::vector<std::int32_t>{0, 3, 5}));
  EXPECT_EQ(values(at.cu_seqlens_padded), (std::vector<std::int32_t>{0, 4, 8}));
  EXPECT_EQ(two.batch.max_seqlen, 4);
  EXPECT_EQ(two.batch.counts.pad_tokens, 3);
}

}  // namespace
}  // namespace stoker

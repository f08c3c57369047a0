#include "media/resampler.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "media/encode_for_test.h"
#include "media/image.h"

namespace stoker {
namespace {

using testing::encode_jpeg;
using testing::encode_png;
using testing::picture;

/// One axis of the reference, as its formulas read: doubles, a table of all outputs, no trimming, no pairs.
struct PlainAxis {
  std::vector<std::vector<std::int64_t>> weights;  // per output, of every source sample
  int precision = 0;
};

double cubic(double u) {
  const double v = std::abs(u);
  return v < 1 ? ((1.5 * v - 2.5) * v) * v + 1 : v < 2 ? -0.5 * (((v - 5) * v + 8) * v - 4) : 0;
}

PlainAxis plain_axis(int n, int n_out) {
  PlainAxis axis;
  const double s = static_cast<double>(n) / n_out;
  const double z = std::max(s, 1.0);
  std::vector<std::vector<double>> all;
  double largest = 0;
  for (int i = 0; i < n_out; ++i) {
    const double c = (i + 0.5) * s;
    const int lo = std::max(0, static_cast<int>(c - 2 * z + 0.5));
    const int hi = std::min(n, static_cast<int>(c + 2 * z + 0.5));
    std::vector<double> w(static_cast<std::size_t>(n), 0.0);
    double sum = 0;
    for (int j = lo; j < hi; ++j) sum += w[static_cast<std::size_t>(j)] = cubic((j - c + 0.5) * (1 / z));
    for (double& x : w) largest = std::max(largest, x /= sum);
    all.push_back(w);
  }
  while (axis.precision < 22 && static_cast<int>(0.5 + largest * (1 << (axis.precision + 1))) < (1 << 15))
    ++axis.precision;
  for (const auto& w : all) {
    auto& q = axis.weights.emplace_back();
    for (const double x : w) q.push_back(static_cast<std::int64_t>(x * (1 << axis.precision) + (x < 0 ? -0.5 : 0.5)));
  }
  return axis;
}

std::uint8_t weighted(const std::vector<std::int64_t>& w, int precision, const std::uint8_t* first,
                      std::ptrdiff_t step) {
  std::int64_t sum = std::int64_t{1} << (precision - 1);
  for (std::size_t j = 0; j < w.size(); ++j) sum += w[j] * first[static_cast<std::ptrdiff_t>(j) * step];
  return static_cast<std::uint8_t>(std::clamp<std::int64_t>(sum >> precision, 0, 255));
}

RgbImage plain_resize(const RgbImage& from, int height, int width) {
  RgbImage across = from;
  if (width != from.width_px) {
    const PlainAxis axis = plain_axis(from.width_px, width);
    across = {from.height_px, width, {}};
    for (int y = 0; y < from.height_px; ++y) {
      for (int x = 0; x < width; ++x) {
        for (int c = 0; c < 3; ++c) {
          across.pixels.push_back(
              weighted(axis.weights[static_cast<std::size_t>(x)], axis.precision,
                       from.pixels.data() + (static_cast<std::ptrdiff_t>(y) * from.width_px) * 3 + c, 3));
        }
      }
    }
  }
  if (height == from.height_px) return across;
  const PlainAxis axis = plain_axis(from.height_px, height);
  RgbImage done{height, width, {}};
  for (int y = 0; y < height; ++y) {
    for (int i = 0; i < width * 3; ++i) {
      done.pixels.push_back(
          weighted(axis.weights[static_cast<std::size_t>(y)], axis.precision, across.pixels.data() + i, width * 3));
    }
  }
  return done;
}

/// EXIF orientation, pixel by pixel.
RgbImage turned(const RgbImage& s, int orientation) {
  const bool is_swapped = orientation >= 5;
  RgbImage u{is_swapped ? s.width_px : s.height_px, is_swapped ? s.height_px : s.width_px, {}};
  for (int y = 0; y < u.height_px; ++y) {
    for (int x = 0; x < u.width_px; ++x) {
      const int h = s.height_px - 1;
      const int w = s.width_px - 1;
      const std::array<std::pair<int, int>, 8> from = {
          {{y, x}, {y, w - x}, {h - y, w - x}, {h - y, x}, {x, y}, {h - x, y}, {h - x, w - y}, {x, w - y}}};
      const auto [sy, sx] = from[static_cast<std::size_t>(orientation) - 1];
      for (int c = 0; c < 3; ++c)
        u.pixels.push_back(s.pixels[static_cast<std::size_t>((sy * s.width_px + sx) * 3 + c)]);
    }
  }
  return u;
}

/// Patch order by the formula: value (c, y, x) to its row and column.
std::vector<std::uint8_t> plain_patches(const RgbImage& image, int p, int m) {
  std::vector<std::uint8_t> out(image.pixels.size());
  const int across = image.width_px / p;
  for (int y = 0; y < image.height_px; ++y) {
    for (int x = 0; x < image.width_px; ++x) {
      for (int c = 0; c < 3; ++c) {
        const int py = y / p;
        const int px = x / p;
        const int row = ((py / m) * (across / m) + px / m) * m * m + py % m * m + px % m;
        const int at = row * 3 * p * p + (c * p + y % p) * p + x % p;
        out[static_cast<std::size_t>(at)] = image.pixels[static_cast<std::size_t>((y * image.width_px + x) * 3 + c)];
      }
    }
  }
  return out;
}

/// Runs a test on every instruction set of this machine, the emulated one included.
class OnEveryTarget : public ::testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override {
    hwy::SetSupportedTargetsForTest(GetParam());
    hwy::GetChosenTarget().DeInit();
  }
  void TearDown() override {
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().DeInit();
  }
};

std::vector<std::int64_t> targets() {
  std::vector<std::int64_t> found;
  for (std::int64_t rest = hwy::SupportedTargets(); rest != 0; rest &= rest - 1) found.push_back(rest & -rest);
  return found;
}

INSTANTIATE_TEST_SUITE_P(Targets, OnEveryTarget, ::testing::ValuesIn(targets()),
                         [](const auto& param) { return std::string(hwy::TargetName(param.param)); });

TEST_P(OnEveryTarget, ResizesAsTheFormulasSay) {
  std::mt19937 random(11);
  const auto side = [&](int limit) { return 1 + static_cast<int>(random() % static_cast<unsigned>(limit)); };
  for (int i = 0; i < 60; ++i) {
    const RgbImage image = picture(side(i % 3 == 0 ? 300 : 60), side(i % 4 == 0 ? 400 : 60), static_cast<unsigned>(i));
    const int height = i % 5 == 0 ? image.height_px : side(90);
    const int width = i % 7 == 0 ? image.width_px : side(90);
    const auto resized = resize_rgb(image, height, width, Resizer::kAten);
    ASSERT_TRUE(resized.ok());
    ASSERT_EQ(resized->pixels, plain_resize(image, height, width).pixels)
        << image.width_px << "x" << image.height_px << " to " << width << "x" << height;
  }
}

TEST_P(OnEveryTarget, TurnsResizesAndPatchesFiles) {
  PatchDecoder decoder;
  int n_cases = 0;
  for (int orientation = 1; orientation <= 8; ++orientation) {
    for (const PatchGeometry& to :
         {PatchGeometry{64, 96, 16, 2}, {32, 160, 16, 2}, {56, 84, 14, 2}, {16, 48, 8, 2}, {48, 32, 16, 1}}) {
      for (const auto& [height, width] : {std::pair{64, 96}, {96, 64}, {51, 77}, {200, 35}}) {
        const auto file = encode_jpeg(picture(height, width, 9), {.orientation = orientation});
        const auto found = probe(file, file.size(), {});
        ASSERT_TRUE(found.ok() && found->info);
        const RgbImage upright = turned(testing::decode_jpeg_plainly(file), orientation);
        const auto want = plain_patches(plain_resize(upright, to.height_px, to.width_px), to.patch, to.merge);
        for (const std::size_t shift : {0U, 1U}) {  // at whole cache lines, and not
          // Guards around the patches: nothing outside may change.
          std::vector<std::uint8_t> memory(to.n_bytes() + 256, 0xA5);
          std::uint8_t* patches =
              memory.data() + 64 + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64 + shift;
          const Status status = decoder.decode(file, *found->info, to, {}, patches);
          ASSERT_TRUE(status.ok()) << status.to_string();
          ASSERT_TRUE(std::equal(want.begin(), want.end(), patches))
              << "orientation " << orientation << ", " << width << "x" << height << " to " << to.width_px << "x"
              << to.height_px << " by " << to.patch;
          ASSERT_TRUE(std::all_of(memory.data(), patches, [](std::uint8_t v) { return v == 0xA5; }));
          ASSERT_TRUE(std::all_of(patches + to.n_bytes(), memory.data() + memory.size(),
                                  [](std::uint8_t v) { return v == 0xA5; }));
        }
        ++n_cases;
      }
    }
  }
  EXPECT_EQ(n_cases, 8 * 5 * 4);
}

TEST_P(OnEveryTarget, DecodesEveryLayout) {
  for (const auto& [h, v] : {std::pair{1, 1}, {2, 1}, {2, 2}}) {
    for (int width = 5; width < 140; width += 9) {
      const auto file = encode_jpeg(picture(37, width, 10), {.luma_h = h, .luma_v = v});
      ASSERT_EQ(decode_rgb(file, {})->pixels, testing::decode_jpeg_plainly(file).pixels) << h << v << " " << width;
    }
  }
  const RgbImage image = picture(30, 77, 12);
  EXPECT_EQ(decode_rgb(encode_png(image, false), {})->pixels, image.pixels);
}

TEST(Resampler, RefusesGridsThatAreNone) {
  const auto file = encode_jpeg(picture(40, 40, 1), {});
  const auto found = probe(file, file.size(), {});
  std::vector<std::uint8_t> patches(1 << 20);
  for (const PatchGeometry& to : {PatchGeometry{0, 32, 16, 2}, {48, 32, 16, 2}, {32, 33, 16, 2}, {32, 32, 0, 2}}) {
    EXPECT_EQ(PatchDecoder().decode(file, *found->info, to, {}, patches.data()).code(), Code::kInternal);
  }
}

}  // namespace
}  // namespace stoker

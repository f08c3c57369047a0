#include "media/resampler.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "media/encode_for_test.h"
#include "media/image.h"
#include "media/wide_kernels.h"

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

PlainAxis plain_axis(int n, int n_out, Resizer resizer) {
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
  while (axis.precision < 22 &&
         (resizer != Resizer::kAten || static_cast<int>(0.5 + largest * (1 << (axis.precision + 1))) < (1 << 15)))
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

RgbImage plain_across(const RgbImage& from, int width, Resizer resizer) {
  if (width == from.width_px) return from;
  const PlainAxis axis = plain_axis(from.width_px, width, resizer);
  RgbImage done{from.height_px, width, {}};
  for (int y = 0; y < from.height_px; ++y) {
    for (int x = 0; x < width; ++x) {
      for (int c = 0; c < 3; ++c) {
        done.pixels.push_back(weighted(axis.weights[static_cast<std::size_t>(x)], axis.precision,
                                       from.pixels.data() + (static_cast<std::ptrdiff_t>(y) * from.width_px) * 3 + c,
                                       3));
      }
    }
  }
  return done;
}

RgbImage plain_down(const RgbImage& from, int height, Resizer resizer) {
  if (height == from.height_px) return from;
  const PlainAxis axis = plain_axis(from.height_px, height, resizer);
  const int n = from.width_px * 3;
  RgbImage done{height, from.width_px, {}};
  for (int y = 0; y < height; ++y) {
    for (int i = 0; i < n; ++i) {
      done.pixels.push_back(
          weighted(axis.weights[static_cast<std::size_t>(y)], axis.precision, from.pixels.data() + i, n));
    }
  }
  return done;
}

RgbImage plain_resize(const RgbImage& from, int height, int width, Resizer resizer) {
  const int lost_height = from.height_px - height;
  const bool is_down_first =
      (resizer == Resizer::kPillow13 && lost_height > 0 && lost_height > 2 * (from.width_px - width)) ||
      (resizer == Resizer::kPillow12_2 && lost_height > 0 && from.height_px > 100 * from.width_px);
  if (is_down_first) return plain_across(plain_down(from, height, resizer), width, resizer);
  return plain_down(plain_across(from, width, resizer), height, resizer);
}

/// Nothing rounded, clamped at the end.
std::vector<double> real_resize(const RgbImage& from, int height, int width) {
  const auto weights_of = [](int n, int n_out) {
    std::vector<std::vector<double>> all;
    const double s = static_cast<double>(n) / n_out;
    const double z = std::max(s, 1.0);
    for (int i = 0; i < n_out; ++i) {
      std::vector<double> w;
      double sum = 0;
      for (int j = 0; j < n; ++j) sum += w.emplace_back(cubic((j - (i + 0.5) * s + 0.5) / z));
      for (double& x : w) x /= sum;
      all.push_back(w);
    }
    return all;
  };
  const auto across = weights_of(from.width_px, width);
  const auto down = weights_of(from.height_px, height);
  const auto at = [&](int y, int x, int c) {
    return static_cast<double>(from.pixels[static_cast<std::size_t>((y * from.width_px + x) * 3 + c)]);
  };
  std::vector<double> rows(static_cast<std::size_t>(from.height_px * width * 3));
  for (int y = 0; y < from.height_px; ++y) {
    for (int i = 0; i < width * 3; ++i) {
      double sum = 0;
      const auto& w = across[static_cast<std::size_t>(i / 3)];
      for (int x = 0; x < from.width_px; ++x) sum += w[static_cast<std::size_t>(x)] * at(y, x, i % 3);
      rows[static_cast<std::size_t>(y * width * 3 + i)] = sum;
    }
  }
  std::vector<double> done;
  for (int y = 0; y < height; ++y) {
    for (int i = 0; i < width * 3; ++i) {
      double sum = 0;
      for (int r = 0; r < from.height_px; ++r) {
        sum += down[static_cast<std::size_t>(y)][static_cast<std::size_t>(r)] *
               rows[static_cast<std::size_t>(r * width * 3 + i)];
      }
      done.push_back(std::clamp(sum, 0.0, 255.0));
    }
  }
  return done;
}

constexpr std::array kExact = {Resizer::kAten, Resizer::kPillow13, Resizer::kPillow12_2, Resizer::kPillow};

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
    // What the wide kernels leave to the others.
    hwy::SetSupportedTargetsForTest(GetParam() == HWY_AVX3_DL ? HWY_AVX3_DL | HWY_AVX3 : GetParam());
    hwy::GetChosenTarget().DeInit();
    ASSERT_EQ(wide_kernels() != nullptr, GetParam() == HWY_AVX3_DL);
  }
  void TearDown() override {
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().DeInit();
  }
};

std::vector<std::int64_t> targets() {
  std::vector<std::int64_t> found;
  for (std::int64_t rest = hwy::SupportedTargets(); rest != 0; rest &= rest - 1) {
    if ((rest & -rest) != HWY_SCALAR) found.push_back(rest & -rest);  // its place is taken by the emulated target
  }
  return found;
}

INSTANTIATE_TEST_SUITE_P(Targets, OnEveryTarget, ::testing::ValuesIn(targets()),
                         [](const auto& param) { return std::string(hwy::TargetName(param.param)); });

/// Every form of the kernels: few taps and many, growing, one axis alone, a single row or column, extreme ratios.
TEST_P(OnEveryTarget, ResizesAsTheFormulasSay) {
  std::mt19937 random(11);
  const auto side = [&](int limit) { return 1 + static_cast<int>(random() % static_cast<unsigned>(limit)); };
  int n_down_first = 0;
  for (int i = 0; i < 160; ++i) {
    const Resizer resizer = kExact[static_cast<std::size_t>(i) % kExact.size()];
    int rows = side(i % 3 == 0 ? 300 : 60);
    const int columns = rows > 200 && i % 6 == 0 ? 1 + i % 2 : side(i % 4 == 0 ? 300 : 60);
    const RgbImage image = picture(rows, columns, static_cast<unsigned>(i));
    const int height = i % 15 == 0 ? image.height_px : side(i % 9 == 0 ? 300 : 90);
    const int width = i % 17 == 0 ? image.width_px : side(i % 11 == 0 ? 300 : 90);
    const auto resized = resize_rgb(image, height, width, resizer);
    ASSERT_TRUE(resized.ok());
    ASSERT_EQ(resized->pixels, plain_resize(image, height, width, resizer).pixels)
        << image.width_px << "x" << image.height_px << " to " << width << "x" << height << ", resizer "
        << static_cast<int>(resizer);
    n_down_first += plain_resize(image, height, width, Resizer::kPillow).pixels != resized->pixels;
  }
  EXPECT_GE(n_down_first, 20);  // results that another resizer would not have given
}

/// Along one axis at a time, so that rows may be long: all forms that taps have at some ratio, and groups cut short.
TEST_P(OnEveryTarget, ResizesOneAxisAtEveryRatio) {
  for (int tenths = 3; tenths < 80; tenths += tenths < 20 ? 1 : 5) {
    for (const int to : {16, 81, 96, 100}) {
      const int from = std::max(1, to * tenths / 10);
      for (const Resizer resizer : {Resizer::kAten, Resizer::kPillow13}) {
        const RgbImage row = picture(3, from, static_cast<unsigned>(tenths));
        ASSERT_EQ(resize_rgb(row, 3, to, resizer)->pixels, plain_resize(row, 3, to, resizer).pixels)
            << from << " " << to;
        const RgbImage column = picture(from, 20, static_cast<unsigned>(tenths));
        ASSERT_EQ(resize_rgb(column, to, 20, resizer)->pixels, plain_resize(column, to, 20, resizer).pixels)
            << from << " " << to;
      }
    }
  }
}

/// More taps than two parts of a weight can sum without wrapping around.
TEST_P(OnEveryTarget, SumsAWholeRow) {
  RgbImage white = picture(3, 5000, 1);
  std::fill(white.pixels.begin(), white.pixels.end(), std::uint8_t{255});
  for (const Resizer resizer : {Resizer::kAten, Resizer::kPillow13}) {
    for (const RgbImage& image : {white, picture(3, 5000, 1)}) {
      EXPECT_EQ(resize_rgb(image, 3, 1, resizer)->pixels, plain_resize(image, 3, 1, resizer).pixels);
    }
  }
}

/// The float resizer against its formula in doubles, whose results may round to the neighbouring level; and one and the
/// same result on every target.
TEST_P(OnEveryTarget, ResizesFloatsAlike) {
  static std::vector<std::vector<std::uint8_t>> first;  // of the first target that ran
  std::mt19937 random(12);
  const auto side = [&](int limit) { return 1 + static_cast<int>(random() % static_cast<unsigned>(limit)); };
  const bool is_first = first.empty();
  for (std::size_t i = 0; i < 60; ++i) {
    const RgbImage image = picture(side(i % 3 == 0 ? 300 : 60), side(i % 4 == 0 ? 300 : 60), static_cast<unsigned>(i));
    const int height = side(90);
    const int width = side(i % 7 == 0 ? 300 : 90);
    const auto resized = resize_rgb(image, height, width, Resizer::kFloat);
    ASSERT_TRUE(resized.ok());
    const std::vector<double> want = real_resize(image, height, width);
    ASSERT_EQ(want.size(), resized->pixels.size());
    for (std::size_t k = 0; k < want.size(); ++k) ASSERT_NEAR(resized->pixels[k], want[k], 0.502) << i << " at " << k;
    if (is_first) first.push_back(resized->pixels);
    ASSERT_EQ(resized->pixels, first[i]);
  }
}

TEST_P(OnEveryTarget, TurnsResizesAndPatchesFiles) {
  PatchDecoder decoder;
  int n_cases = 0;
  for (int orientation = 1; orientation <= 8; ++orientation) {
    for (const PatchGeometry& to : {PatchGeometry{64, 96, 16, 2},
                                    {32, 160, 16, 2},
                                    {56, 84, 14, 2},
                                    {16, 48, 8, 2},
                                    {48, 32, 16, 1},
                                    {40, 80, 20, 2}}) {
      for (const auto& [height, width] : {std::pair{64, 96}, {96, 64}, {51, 77}, {200, 35}, {35, 200}}) {
        ImageOptions options;
        options.resizer = kExact[static_cast<std::size_t>(n_cases) % kExact.size()];
        const auto file = encode_jpeg(picture(height, width, 9), {.orientation = orientation});
        const auto found = probe(file, file.size(), {});
        ASSERT_TRUE(found.ok() && found->info);
        const RgbImage upright = turned(testing::decode_jpeg_plainly(file), orientation);
        const auto want =
            plain_patches(plain_resize(upright, to.height_px, to.width_px, options.resizer), to.patch, to.merge);
        for (const std::size_t shift : {0U, 1U}) {  // at whole cache lines, and not
          // Guards around the patches: nothing outside may change.
          std::vector<std::uint8_t> memory(to.n_bytes() + 256, 0xA5);
          std::uint8_t* patches =
              memory.data() + 64 + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64 + shift;
          const Status status = decoder.decode(file, *found->info, to, options, patches);
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
  EXPECT_EQ(n_cases, 8 * 6 * 5);
}

TEST_P(OnEveryTarget, DecodesEveryLayout) {
  for (const auto& [h, v] : {std::pair{1, 1}, {2, 1}, {2, 2}}) {
    for (int width = 5; width < 140; width += 9) {
      const auto file = encode_jpeg(picture(37, width, 10), {.luma_h = h, .luma_v = v});
      ASSERT_EQ(decode_rgb(file, {})->pixels, testing::decode_jpeg_plainly(file).pixels) << h << v << " " << width;
    }
  }
  for (int orientation = 1; orientation <= 8; ++orientation) {
    const auto file = encode_jpeg(picture(37, 70, 11), {.orientation = orientation});
    ASSERT_EQ(decode_rgb(file, {})->pixels, turned(testing::decode_jpeg_plainly(file), orientation).pixels);
  }
  RgbImage chroma{256, 256, {}};  // all pairs of red and blue
  for (int i = 0; i < 256 * 256; ++i) {
    for (const int v : {i, (i * 7 + i / 256 * 3), i / 256}) chroma.pixels.push_back(static_cast<std::uint8_t>(v));
  }
  const auto file = encode_jpeg(chroma, {.quality = 60, .luma_h = 1, .luma_v = 1});
  EXPECT_EQ(decode_rgb(file, {})->pixels, testing::decode_jpeg_plainly(file).pixels);
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

// Lengths that are told from rank to rank: what one rank measures is planned by another as if it had measured it
// itself, and a pack's samples get their texts and URLs back when it is built.
#include "data/lengths.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/small_model_for_test.h"
#include "media/encode_for_test.h"
#include "pipeline/lengths_steps.h"
#include "pipeline/measurer.h"
#include "pipeline/planner.h"
#include "pipeline/sample_steps.h"

namespace stoker {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kRows =
    R"({"messages": [{"role": "user", "content": "<image>What?"}, {"role": "assistant", "content": "A."}], "images": ["0.jpg"]}
{"messages": [{"role": "user", "content": "<image><image>Which?"}, {"role": "assistant", "content": "B."}], "images": ["0.jpg", "1.jpg"]}
{"messages": [{"role": "user", "content": "<image>Twice?"}, {"role": "assistant", "content": "C."}], "images": ["1.jpg"]}
{"messages": [{"role": "user", "content": [{"type": "image", "image": "2.jpg", "height": 70, "width": 90}, {"type": "text", "text": "D?"}]}, {"role": "assistant", "content": "D."}]}
{"messages": [{"role": "user", "content": "<image>Find the <ref-object>."}, {"role": "assistant", "content": "<bbox>"}], "images": ["0.jpg"], "objects": {"ref": ["dog"], "bbox": [[10, 20, 30, 40]]}}
{"messages": [{"role": "user", "content": "<video>When?"}, {"role": "assistant", "content": "E."}], "videos": [["0.jpg", "0.jpg", "3.jpg"]]}
{"messages": [{"role": "user", "content": "<image>F?"}, {"role": "assistant", "content": "F."}, {"role": "user", "content": "<image>G?"}, {"role": "assistant", "content": "G, at some length. G, at some length. G, at some length. G, at some length."}], "images": ["0.jpg", "4.jpg"]}
{"messages": [{"role": "user", "content": "<image>H?"}, {"role": "assistant", "content": "H."}], "images": ["missing.jpg"]}
{"messages": [{"role": "user", "content": "I?"}, {"role": "assistant", "content": "I."}]}
{"messages": [{"role": "user", "content": "<image>J?"}, {"role": "assistant", "content": "J."}], "images": ["@inline@"]}
{broken
{"messages": [{"role": "user", "content": "<image>K?"}, {"role": "assistant", "content": "K."}], "images": ["4.jpg"]}
)";
constexpr std::uint64_t kNumRows = 12;

std::string base64(const std::vector<std::byte>& bytes) {
  static constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t three = 0;
    for (std::size_t k = 0; k < 3; ++k) {
      three = three << 8 | (i + k < bytes.size() ? std::to_integer<std::uint32_t>(bytes[i + k]) : 0);
    }
    for (std::size_t k = 0; k < 4; ++k) {
      out += i + k > bytes.size() ? '=' : kDigits[three >> (18 - 6 * k) & 63];
    }
  }
  return out;
}

class LengthsTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = fs::temp_directory_path() / ("stoker-lengths-test-" + std::to_string(getpid()));
    fs::remove_all(folder_);
    testing::write_small_model(STOKER_TESTDATA, folder_ / "model");
    // Of 4.jpg two do not fit into a pack; 0 and 3 are alike.
    const int sides[][2] = {{64, 96}, {96, 64}, {70, 90}, {64, 96}, {400, 400}};
    std::string rows(kRows);
    for (unsigned n = 0; n < std::size(sides); ++n) {
      const auto file = testing::encode_jpeg(testing::picture(sides[n][0], sides[n][1], n), {});
      std::ofstream(folder_ / (std::to_string(n) + ".jpg"), std::ios::binary)
          .write(reinterpret_cast<const char*>(file.data()), static_cast<std::streamsize>(file.size()));
      if (n == 1) rows.replace(rows.find("@inline@"), 8, "data:image/jpeg;base64," + base64(file));
    }
    std::ofstream(folder_ / "rows.jsonl", std::ios::binary) << rows;
  }
  static void TearDownTestSuite() { fs::remove_all(folder_); }

  LengthsTest() {
    settings_.output.data = {{.manifest = (folder_ / "rows.jsonl").string(), .media_root = ""}};
    settings_.output.model = (folder_ / "model").string();
    settings_.output.shuffle = Shuffle::kNone;
    settings_.output.pack = {.tokens_per_pack = 224, .packs_per_step = 1};
    settings_.output.over_long = OverLong::kTruncateTurns;
    settings_.output.window_samples = kNumRows;
    settings_.speed.cpu_threads = 2;
    model_ = load_model(settings_).value();
    fetcher_ = Fetcher::create(fetch_settings(settings_)).value();
    dataset_.emplace(Dataset::open(settings_, *fetcher_, {}, [](std::string_view) {}).value());
    workers_.emplace(2, "stoker-cpu", Clock::real());
  }
  ~LengthsTest() override {
    fetcher_->stop();
    workers_->stop();
  }

  Measurer measurer() { return Measurer(settings_, *dataset_, model_, *fetcher_, *workers_); }
  OrderWindow all() const { return dataset_->window(0, {}).value(); }
  std::string digest(const MeasuredWindow& window) const {
    const auto plan = plan_window(0, plan_samples(window, CostModel{}), settings_.output.pack);
    EXPECT_TRUE(plan.ok()) << plan.status().to_string();
    return plan.ok() ? plan->digest() : "";
  }

  static inline fs::path folder_;
  LoaderSettings settings_;
  std::shared_ptr<const qwen_vl::QwenVl> model_;
  std::unique_ptr<Fetcher> fetcher_;
  std::optional<Dataset> dataset_;
  std::optional<WorkerPool> workers_;
};

TEST_F(LengthsTest, AToldSampleIsPlannedAndCompletedAsAMeasuredOne) {
  Measurer here = measurer();
  const auto whole = here.measure(all(), 0, {});
  ASSERT_TRUE(whole.ok()) << whole.status().to_string();
  const std::vector<MeasuredSample>& measured = (*whole)->samples;
  EXPECT_TRUE(measured[6].is_truncated);
  EXPECT_EQ(measured[7].bad.reason(), Reason::kMediaNotFound);
  EXPECT_EQ(measured[10].bad.reason(), Reason::kJsonSyntax);
  EXPECT_EQ(std::count_if(measured.begin(), measured.end(), [](const auto& s) { return s.bad.ok(); }), 10);

  // Two ranks: each measures every other position and tells the other.
  std::vector<OrderWindow::Place> even, odd;
  for (const OrderWindow::Place& place : all().places) (place.order_index % 2 == 0 ? even : odd).push_back(place);
  Measurer there = measurer();
  auto own = here.measure_part(even, 0, {});
  const auto others = there.measure_part(odd, 0, {});
  ASSERT_TRUE(own.ok() && others.ok());
  std::vector<SampleLengths> lengths;
  for (const MeasuredSample& sample : *others) lengths.push_back(lengths_of(sample));
  const auto told = decode_lengths(encode_lengths(lengths));
  ASSERT_TRUE(told.ok());
  const auto window = here.assemble(all(), std::move(*own), *told);
  ASSERT_TRUE(window.ok()) << window.status().to_string();
  EXPECT_EQ(digest(**window), digest(**whole));

  for (std::size_t i = 0; i < kNumRows; ++i) {
    const MeasuredSample& sample = (*window)->samples[i];
    EXPECT_EQ(sample.has_text, i % 2 == 0);
    EXPECT_EQ(sample.bad.to_string(), measured[i].bad.to_string());
    EXPECT_EQ(sample.bad_media, measured[i].bad_media);
    if (!sample.bad.ok()) continue;
    EXPECT_EQ(lengths_of(sample), lengths_of(measured[i])) << i;
    // Of the even ones as well, as if they had been told.
    const auto as_told = measured_from(lengths_of(sample), sample.entry, settings_.output, *model_);
    ASSERT_TRUE(as_told.ok()) << i << ": " << as_told.status().to_string();
    const auto completed = complete_sample(settings_, *dataset_, *model_, *as_told);
    ASSERT_TRUE(completed.ok()) << i << ": " << completed.status().to_string();
    EXPECT_EQ(completed->text.ids, measured[i].text.ids) << i;
    EXPECT_EQ(completed->text.is_trained, measured[i].text.is_trained) << i;
    EXPECT_EQ(completed->text.n_images, measured[i].text.n_images) << i;
    EXPECT_EQ(lengths_of(*completed), lengths_of(measured[i])) << i;
    ASSERT_EQ(completed->n_pictures(), measured[i].n_pictures());
    for (std::size_t k = 0; k < completed->n_pictures(); ++k) {
      EXPECT_EQ(completed->picture(k).url, measured[i].picture(k).url);
      EXPECT_EQ(completed->picture(k).plan.n_patches(), measured[i].picture(k).plan.n_patches());
    }
  }
}

TEST_F(LengthsTest, AnObjectThatAWindowNamesOftenIsReadOnce) {
  Measurer here = measurer();
  ASSERT_TRUE(here.measure(all(), 0, {}).ok());
  EXPECT_EQ(here.n_probes(), 5);  // 0, 1, 3, 4 and the missing one; the size of 2 stands in its row
  ASSERT_TRUE(here.measure(all(), 0, {}).ok());
  EXPECT_EQ(here.n_probes(), 6);  // what is missing is looked for again by another window
}

TEST_F(LengthsTest, LengthsThatAreNotTheRowsAreRefused) {
  Measurer here = measurer();
  const auto measured = here.measure(all(), 0, {});
  ASSERT_TRUE(measured.ok());
  const MeasuredSample& first = (*measured)->samples[0];
  const auto refusal_of = [&](const std::function<void(SampleLengths&)>& change) {
    SampleLengths lengths = lengths_of(first);
    change(lengths);
    const auto told = measured_from(lengths, first.entry, settings_.output, *model_);
    if (!told.ok()) return told.status();
    const auto completed = complete_sample(settings_, *dataset_, *model_, *told);
    return completed.ok() ? Status() : completed.status();
  };
  EXPECT_TRUE(refusal_of([](SampleLengths&) {}).ok());
  const Status status = refusal_of([](SampleLengths& l) { ++l.n_ids, ++l.tokens; });
  EXPECT_EQ(status.reason(), Reason::kPlanMismatch);
  EXPECT_NE(status.message().find("rows.jsonl:1"), std::string::npos) << status.message();
  for (const auto& change : std::vector<std::function<void(SampleLengths&)>>{
           [](SampleLengths& l) { ++l.tokens; },
           [](SampleLengths& l) { --l.n_trained; },
           [](SampleLengths& l) { l.n_trained = l.n_ids + 1; },
           [](SampleLengths& l) { l.images[0].image.height_px = 0; },
           [](SampleLengths& l) { l.images[0].image.prepared_width_px = 1 << 30; },
           [](SampleLengths& l) { l.images.clear(); },
           [](SampleLengths& l) { l.bad = Reason::kOutage; },
       }) {
    EXPECT_EQ(refusal_of(change).reason(), Reason::kPlanMismatch);
  }
  // Another rank may know the picture by another address; this rank's own index may not.
  EXPECT_TRUE(refusal_of([](SampleLengths& l) { ++l.images[0].image.key.low; }).ok());
  MeasuredSample renamed = first;
  renamed.has_text = false;
  renamed.from = LengthsFrom::kIndex;
  ++renamed.images[0].key.low;
  EXPECT_EQ(complete_sample(settings_, *dataset_, *model_, renamed).status().reason(), Reason::kIndexDir);
  // An index that says so is named in its place.
  MeasuredSample known = first;
  known.has_text = false;
  known.from = LengthsFrom::kIndex;
  ++known.n_ids;
  EXPECT_EQ(complete_sample(settings_, *dataset_, *model_, known).status().reason(), Reason::kIndexDir);
}

TEST_F(LengthsTest, AWindowHasEveryPositionOnce) {
  Measurer here = measurer();
  const std::vector<OrderWindow::Place> rows = all().places;
  const auto part = here.measure_part(std::span(rows).subspan(3, 2), 0, {});
  ASSERT_TRUE(part.ok());
  const std::vector<SampleLengths> told = {lengths_of((*part)[1])};
  const auto assembled = [&](std::ptrdiff_t first, std::ptrdiff_t n, std::size_t n_own) {
    return here
        .assemble({.window = 0, .places = {rows.begin() + first, rows.begin() + first + n}},
                  {part->begin(), part->begin() + static_cast<std::ptrdiff_t>(n_own)}, told)
        .status()
        .reason();
  };
  EXPECT_EQ(assembled(3, 2, 1), Reason::kNone);
  EXPECT_EQ(assembled(3, 2, 2), Reason::kPlanMismatch);  // 4 comes twice
  EXPECT_EQ(assembled(3, 3, 1), Reason::kPlanMismatch);  // 5 is missing
  EXPECT_EQ(assembled(4, 1, 1), Reason::kPlanMismatch);  // 3 is not asked for
}

}  // namespace
}  // namespace stoker

#include "engine/data_walk.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "engine/forecaster.h"
#include "engine/indexer.h"
#include "engine/small_model_for_test.h"

namespace stoker {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr std::uint64_t kRows = 300;

/// A data set of texts of different lengths, one of them broken, and settings with small windows.
class DataWalkTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = fs::temp_directory_path() / ("stoker-walk-test-" + std::to_string(getpid()));
    fs::remove_all(folder_);
    testing::write_small_model(STOKER_TESTDATA, folder_ / "model");
    std::ofstream rows(folder_ / "rows.jsonl", std::ios::binary);
    for (std::uint64_t i = 0; i < kRows; ++i) {
      if (i == 100) {
        rows << "{broken\n";
        continue;
      }
      rows << R"({"messages": [{"role": "user", "content": "Which?"}, {"role": "assistant", "content": ")"
           << std::string(1 + i % 50, 'x') << "\"}]}\n";
    }
  }
  static void TearDownTestSuite() { fs::remove_all(folder_); }

  static LoaderSettings settings() {
    LoaderSettings settings;
    settings.output.data = {{.manifest = (folder_ / "rows.jsonl").string(), .media_root = ""}};
    settings.output.model = (folder_ / "model").string();
    settings.output.window_samples = 16;
    settings.output.epochs = 1;
    settings.output.pack.tokens_per_pack = 256;
    settings.output.pack.packs_per_step = 4;
    settings.speed.cpu_threads = 3;
    return settings;
  }

  /// What became of a walk.
  template <typename Facade>
  static Status ended(Facade& facade) {
    for (;;) {
      const Result<bool> done = facade.wait_within(100ms);
      if (!done.ok()) return done.status();
      if (*done) return {};
    }
  }

  static inline fs::path folder_;
};

TEST_F(DataWalkTest, WindowsComeInOrderAndEachOnce) {
  DataWalk walk(settings(), Clock::real());
  std::vector<std::uint64_t> places;
  ASSERT_TRUE(walk.start("stoker-test",
                         [&](std::stop_token stop) {
                           return walk.each_window(
                               {},
                               [&](const MeasuredWindow& window) -> Result<bool> {
                                 for (const MeasuredSample& sample : window.samples)
                                   places.push_back(sample.order_index);
                                 return true;
                               },
                               stop);
                         })
                  .ok());
  ASSERT_TRUE(ended(walk).ok());
  ASSERT_EQ(places.size(), kRows);
  for (std::uint64_t i = 0; i < kRows; ++i) EXPECT_EQ(places[i], i);
}

TEST_F(DataWalkTest, AVisitEndsItWithoutAndWithAnError) {
  for (const bool fails : {false, true}) {
    DataWalk walk(settings(), Clock::real());
    int n_windows = 0;
    ASSERT_TRUE(walk.start("stoker-test",
                           [&](std::stop_token stop) {
                             return walk.each_window(
                                 {},
                                 [&](const MeasuredWindow&) -> Result<bool> {
                                   if (++n_windows < 3) return true;
                                   if (fails) return Status(Reason::kIndexDir, "the disk is full");
                                   return false;
                                 },
                                 stop);
                           })
                    .ok());
    const Status status = ended(walk);
    EXPECT_EQ(status.reason(), fails ? Reason::kIndexDir : Reason::kNone);
    EXPECT_EQ(n_windows, 3);
  }
}

TEST_F(DataWalkTest, StopEndsItInTheMiddle) {
  for (int times = 0; times < 5; ++times) {
    DataWalk walk(settings(), Clock::real());
    std::stop_source visited;
    Mutex mu;
    std::condition_variable_any changed;
    ASSERT_TRUE(walk.start("stoker-test",
                           [&](std::stop_token stop) {
                             return walk.each_window(
                                 {},
                                 [&](const MeasuredWindow&) -> Result<bool> {
                                   visited.request_stop();
                                   MutexLock lock(mu);  // until it is stopped
                                   changed.wait(lock, stop, [] { return false; });
                                   return true;
                                 },
                                 stop);
                           })
                    .ok());
    MutexLock lock(mu);
    changed.wait(lock, visited.get_token(), [] { return false; });
    lock.unlock();
    walk.stop();
    lock.lock();
    EXPECT_EQ(ended(walk).reason(), Reason::kStopped);
  }
}

TEST_F(DataWalkTest, AForecastAndAnIndexCountTheSameRows) {
  auto forecaster = Forecaster::create(settings(), {.dp_sizes = {2, 4}, .n_epochs = 1, .compares = true});
  auto indexer = Indexer::create(settings(), {.pack_lengths = {40, 60}});
  ASSERT_TRUE(forecaster.ok());
  ASSERT_TRUE(indexer.ok());
  ASSERT_TRUE(ended(**forecaster).ok());
  ASSERT_TRUE(ended(**indexer).ok());
  const ForecastReport plan = (*forecaster)->report();
  const IndexReport index = (*indexer)->report();
  EXPECT_EQ(plan.n_positions, kRows);
  EXPECT_EQ(index.n_rows, kRows);
  EXPECT_EQ(plan.rejected.by_reason, index.rejected.by_reason);
  EXPECT_EQ(plan.tokens.total(), index.tokens.total());
  EXPECT_EQ(plan.policies.size(), 8U);
  for (const PackForecast& policy : plan.policies) {
    EXPECT_EQ(policy.n_samples, static_cast<std::int64_t>(kRows) - 1);
    EXPECT_EQ(policy.tokens, index.tokens.total());
    ASSERT_EQ(policy.ranks.size(), 2U);
    EXPECT_GT(policy.ranks[1].n_steps, 0);
  }
  EXPECT_GT(index.n_longer_than.at(40), index.n_longer_than.at(60));
  EXPECT_EQ(index.n_longer_than.at(256), 0U);
}

TEST_F(DataWalkTest, RanksThatDoNotDivideAreRefusedAtOnce) {
  const auto made = Forecaster::create(settings(), {.dp_sizes = {3}, .n_steps = 1});
  ASSERT_FALSE(made.ok());
  EXPECT_NE(made.status().message().find("can be divided by 1, 2, 4"), std::string::npos) << made.status().message();
}

}  // namespace
}  // namespace stoker

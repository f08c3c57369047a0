#include "manifest/claim.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace stoker {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

class ClaimTest : public ::testing::Test {
 protected:
  ClaimTest() {
    std::string name = (fs::temp_directory_path() / "stoker_claim_XXXXXX").string();
    dir_ = ::mkdtemp(name.data());
    path_ = (dir_ / "work.claim").string();
  }
  ~ClaimTest() override { fs::remove_all(dir_); }

  fs::path dir_;
  std::string path_;
  const std::function<bool()> never_ = [] { return false; };
  const ClaimTimes quick_{.beat = 5ms, .lease = 60ms, .look = 1ms};
};

TEST_F(ClaimTest, OneOfManyDoesTheWork) {
  constexpr int kThreads = 12;
  std::atomic<int> n_worked{0};
  std::atomic<bool> is_done{false};
  std::latch all_here(kThreads);
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&] {
        all_here.arrive_and_wait();
        const auto claim = Claim::take(
            path_, [&] { return is_done.load(); }, {}, {}, quick_);
        ASSERT_TRUE(claim.ok()) << claim.status().to_string();
        if (*claim == nullptr) return;
        ++n_worked;
        is_done = true;
      });
    }
  }
  EXPECT_EQ(n_worked, 1);
  EXPECT_TRUE(fs::is_empty(dir_)) << "a claim is given back";
}

TEST_F(ClaimTest, WhoWaitsHearsOfTheProgressAndGoesOnWhenItIsDone) {
  std::atomic<bool> is_done{false};
  auto held = Claim::take(path_, never_, {}, {}, quick_);
  ASSERT_TRUE(held.ok() && *held != nullptr);
  (*held)->tell(30, 100);
  std::pair<std::uint64_t, std::uint64_t> heard;
  const auto other = Claim::take(
      path_, [&] { return is_done.load(); },
      [&](std::uint64_t n_done, std::uint64_t n_all) {
        heard = {n_done, n_all};
        is_done = true;
      },
      {}, quick_);
  ASSERT_TRUE(other.ok());
  EXPECT_EQ(*other, nullptr);
  EXPECT_EQ(heard, std::pair(std::uint64_t{30}, std::uint64_t{100}));
}

TEST_F(ClaimTest, ALivingHolderKeepsItForManyLeases) {
  auto held = Claim::take(path_, never_, {}, {}, quick_);
  ASSERT_TRUE(held.ok() && *held != nullptr);
  const auto began = std::chrono::steady_clock::now();
  std::atomic<bool> is_done{false};
  const auto other = Claim::take(
      path_,
      [&] {
        is_done = std::chrono::steady_clock::now() - began > 5 * quick_.lease;
        return is_done.load();
      },
      {}, {}, quick_);
  ASSERT_TRUE(other.ok());
  EXPECT_EQ(*other, nullptr) << "it was taken over from one who lives";
}

TEST_F(ClaimTest, ADeadHoldersIsTakenOverByOne) {
  for (const char* left : {"", "0123456789abcdef 4 30 100\n"}) {
    std::ofstream(path_) << left;  // what a killed process leaves
    std::atomic<int> n_worked{0};
    std::atomic<bool> is_done{false};
    {
      std::vector<std::jthread> threads;
      for (int i = 0; i < 6; ++i) {
        threads.emplace_back([&] {
          const auto claim = Claim::take(
              path_, [&] { return is_done.load(); }, {}, {}, quick_);
          ASSERT_TRUE(claim.ok()) << claim.status().to_string();
          if (*claim == nullptr) return;
          ++n_worked;
          is_done = true;
        });
      }
    }
    EXPECT_EQ(n_worked, 1);
    EXPECT_TRUE(fs::is_empty(dir_));
  }
}

TEST_F(ClaimTest, WhoWaitsCanBeStopped) {
  auto held = Claim::take(path_, never_, {}, {}, quick_);
  ASSERT_TRUE(held.ok() && *held != nullptr);
  (*held)->tell(1, 2);
  std::stop_source stop;
  const auto other = Claim::take(
      path_, never_, [&](std::uint64_t, std::uint64_t) { stop.request_stop(); }, stop.get_token(), quick_);
  EXPECT_EQ(other.status().reason(), Reason::kStopped);
}

TEST_F(ClaimTest, ForeignBytesInItAreOnlyNumbersOrNothing) {
  std::string noise = "x";
  for (int i = 0; i < 4000; ++i) noise += static_cast<char>(i * 37);
  for (const std::string& text : {noise, std::string("t 99999999999999999999999 -3 x"), std::string(300, ' ')}) {
    std::ofstream(path_, std::ios::binary) << text;
    auto claim = Claim::take(
        path_, never_, [](std::uint64_t, std::uint64_t) {}, {}, quick_);
    ASSERT_TRUE(claim.ok() && *claim != nullptr);
  }
}

TEST_F(ClaimTest, SaysWhereItCannotBe) {
  const auto claim = Claim::take((dir_ / "nowhere" / "x.claim").string(), never_, {}, {}, quick_);
  EXPECT_EQ(claim.status().reason(), Reason::kIndexDir);
}

}  // namespace
}  // namespace stoker

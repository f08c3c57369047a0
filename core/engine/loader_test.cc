#include "engine/loader.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <latch>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "data/pack.h"
#include "data/pack_wire.h"
#include "engine/hand_over.h"
#include "engine/run_fixture_for_test.h"

namespace stoker {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

class LoaderTest : public stoker::testing::RunFixture {};

TEST_F(LoaderTest, ThreadsAndPrefetchChangeNoBatch) {
  std::vector<std::string> expected;
  for (const auto& [threads, ahead] : {std::pair{1, 0}, {2, 1}, {8, 3}}) {
    LoaderSettings s = settings();
    s.speed.cpu_threads = threads;
    s.speed.prefetch_steps = ahead;
    const auto loader = opened(s);
    const auto found = digests(*loader, 12);
    ASSERT_EQ(found.size(), 12U);
    if (expected.empty()) expected = found;
    EXPECT_EQ(found, expected) << threads << " threads, " << ahead << " steps ahead";
  }
  EXPECT_GT(std::set<std::string>(expected.begin(), expected.end()).size(), 8U);
}

TEST_F(LoaderTest, ResumesFromEveryStep) {
  const auto whole = opened(settings());
  std::vector<LoaderState> states;
  std::vector<std::string> expected;
  for (int step = 0; step < 5; ++step) {
    states.push_back(*whole->state());
    for (const auto& d : digests(*whole, 2)) expected.push_back(d);
  }
  for (std::size_t i = 0; i < states.size(); ++i) {
    const auto loader = opened(settings());
    ASSERT_TRUE(loader->load_state(states[i]).ok());
    const std::vector<std::string> tail(expected.begin() + static_cast<std::ptrdiff_t>(2 * i), expected.end());
    EXPECT_EQ(digests(*loader, tail.size()), tail) << "from step " << i;
    EXPECT_EQ(loader->load_state(states[i]).reason(), Reason::kState);
  }
}

TEST_F(LoaderTest, AFiniteOrderGivesEveryGoodRowOnceAndALineForEveryBadOne) {
  LoaderSettings s = settings();
  s.output.epochs = 1;
  s.output.shuffle = Shuffle::kNone;
  const auto loader = opened(s);
  std::multiset<std::int64_t> ids;
  while (const auto batch = next(*loader)) {
    const auto* sample = batch->array<std::int64_t>(batch->layout().sample_ids);
    for (std::int64_t i = 0; i < batch->shape.samples; ++i) {
      if (sample[i] >= 0) ids.insert(sample[i]);
    }
    const auto* ends = batch->array<std::int32_t>(batch->layout().cu_seqlens);
    EXPECT_EQ(ends[batch->shape.samples], batch->shape.tokens);
  }
  EXPECT_EQ(ids, (std::multiset<std::int64_t>{0, 1, 2, 3, 4, 6, 7, 8, 9, 11, 12, 13}));
  EXPECT_EQ(lines_of_ledger(), (std::set<int>{6, 11, 15}));
  const LoaderReport report = loader->report();
  EXPECT_EQ(report.samples, 12);
  EXPECT_EQ(report.bad.at(Reason::kImgTruncated), 2);
  EXPECT_EQ(report.bad.at(Reason::kJsonSyntax), 1);
  EXPECT_TRUE(loader->next_within(milliseconds(0)).ok());
  EXPECT_TRUE(loader->is_at_end());
}

/// What a coordinator and a worker would send of a batch.
Status hand_on(const Batch& batch, const PlanState& after, HandOver& to) {
  peers::Pack pack{.block_bytes = batch.layout().n_bytes, .delivery = {.batch = batch}};
  pack.delivery.batch.block = nullptr;
  pack.delivery.is_last_of_step = batch.counts.micro_batch + 1 == batch.counts.micro_batches_in_step;
  pack.delivery.state_after = after;
  STOKER_TRY(const std::string tail, squeeze(batch));
  return to.put(peers::encode(pack), block_over(pixels_of(batch), batch.block), tail);
}

TEST_F(LoaderTest, BatchesThatAreHandedOnAreTheSame) {
  LoaderSettings here = settings();
  here.output.epochs = 2;
  auto maker = opened(here);
  auto there = here;
  there.hand_over = std::make_shared<HandOver>();
  there.output.model = there.output.data[0].manifest = "/nowhere";
  auto loader = Loader::create(there);
  ASSERT_TRUE(loader.ok());
  ASSERT_TRUE(
      there.hand_over->welcome(peers::encode(peers::Welcome{maker->state()->fingerprint, maker->pixels()})).ok());
  ASSERT_TRUE(*(*loader)->open_within(milliseconds(10000)));
  ASSERT_TRUE((*loader)->next_within(milliseconds(0)).ok());
  int n = 0;
  while (const auto batch = next(*maker)) {
    ++n;
    ASSERT_TRUE(hand_on(*batch, maker->state()->cursor, *there.hand_over).ok());
    const auto same = next(**loader);
    ASSERT_TRUE(same);
    EXPECT_EQ(digest_of(*same), digest_of(*batch));
    EXPECT_EQ(same->max_seqlen, batch->max_seqlen);
    EXPECT_EQ(same->counts.target_tokens, batch->counts.target_tokens);
    EXPECT_EQ((*loader)->state()->cursor, maker->state()->cursor);
    EXPECT_EQ((*loader)->state()->fingerprint, maker->state()->fingerprint);
  }
  EXPECT_GT(n, 10);
}

TEST_F(LoaderTest, EndsAnywhere) {
  for (std::size_t n_taken = 0; n_taken < 8; ++n_taken) {
    const auto loader = opened(settings());
    EXPECT_EQ(digests(*loader, n_taken).size(), n_taken);
  }
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(Loader::create(settings()).ok());  // while it opens
}

TEST_F(LoaderTest, AnotherThreadMayCloseAndAskForTheReport) {
  for (int round = 0; round < 4; ++round) {
    const auto loader = opened(settings());
    std::latch running(1);
    std::jthread trainer([&] {
      for (;;) {
        const auto batch = loader->next_within(milliseconds(20));
        running.count_down(running.try_wait() ? 0 : 1);
        if (!batch.ok()) {
          EXPECT_TRUE(batch.status().reason() == Reason::kStopped || batch.status().reason() == Reason::kClosed)
              << batch.status().to_string();
          return;
        }
      }
    });
    running.wait();
    for (int i = 0; i < 20; ++i) EXPECT_GE(loader->report().batches, 0);
    std::jthread other([&] { loader->close(); });
    loader->close();
    other.join();
    trainer.join();
    EXPECT_EQ(loader->next_within(milliseconds(0)).status().reason(), Reason::kClosed);
    EXPECT_TRUE(loader->report().pipeline.has_value());
  }
}

TEST_F(LoaderTest, BatchesOutliveTheLoader) {
  std::vector<Batch> held;
  std::vector<std::string> expected;
  {
    const auto loader = opened(settings());
    for (int i = 0; i < 6; ++i) {
      held.push_back(*next(*loader));
      expected.push_back(digest_of(held.back()));
    }
  }
  std::jthread elsewhere([&] {  // the last reference may die on any thread
    for (std::size_t i = 0; i < held.size(); ++i) EXPECT_EQ(digest_of(held[i]), expected[i]);
    held.clear();
  });
}

TEST_F(LoaderTest, ATrainerThatHoldsEverythingIsTold) {
  LoaderSettings s = settings();
  s.speed.memory_limit_bytes = 12U << 20;
  s.outage_limit_s = 0;
  const auto loader = opened(s);
  std::vector<Batch> held;
  for (;;) {
    auto batch = loader->next_within(milliseconds(200));
    if (!batch.ok()) {
      EXPECT_EQ(batch.status().reason(), Reason::kMemoryLimit);
      break;
    }
    if (*batch) held.push_back(std::move(**batch));
    ASSERT_LT(held.size(), 100U);
  }
  EXPECT_GE(held.size(), 2U);
  EXPECT_LE(loader->report().pipeline->memory_peak_bytes, s.speed.memory_limit_bytes);
}

TEST_F(LoaderTest, TheWaitIsMeasuredByTheGivenClock) {
  FakeClock clock;
  LoaderSettings s = settings();
  const auto loader = opened(s, clock);
  for (int step = 0; step < 4; ++step) {
    for (int k = 0; k < 2; ++k) {
      ASSERT_TRUE(next(*loader));
      clock.advance(milliseconds(50));
      loader->add_wait(0.005);
    }
  }
  const WaitTotals wait = loader->report().wait;
  EXPECT_EQ(wait.n_steps, 2);  // the first apart, the last not over
  EXPECT_NEAR(wait.step_s, 0.2, 1e-9);
  EXPECT_NEAR(wait.wait_ratio(), 0.1, 1e-9);
}

TEST_F(LoaderTest, RefusesSettingsThatCannotWork) {
  auto reason = [](auto change) {
    LoaderSettings s = settings();
    change(s);
    return Loader::create(std::move(s)).status().reason();
  };
  EXPECT_EQ(reason([](LoaderSettings& s) { s.output.data.clear(); }), Reason::kSettings);
  EXPECT_EQ(reason([](LoaderSettings& s) { s.dp_rank = 2; }), Reason::kSettings);
  EXPECT_EQ(reason([](LoaderSettings& s) { s.dp_size = 3; }), Reason::kSettings);
  EXPECT_EQ(reason([](LoaderSettings& s) { s.speed.cpu_threads = 0; }), Reason::kSettings);
  EXPECT_EQ(reason([](LoaderSettings& s) { s.speed.fetch_threads = 0; }), Reason::kSettings);
  EXPECT_EQ(reason([](LoaderSettings& s) { s.outage_limit_s = -1; }), Reason::kSettings);
}

}  // namespace
}  // namespace stoker

#include "engine/hand_over.h"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>
#include <vector>

#include "data/pack_wire.h"
#include "engine/loader.h"

namespace stoker {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::int64_t kTokens = 48;
constexpr std::int64_t kMicroBatches = 2;

const PackShape& shape() {
  static const PackShape shape{.tokens = kTokens, .samples = 1, .images = 1, .patches = 4, .patch = 2};
  return shape;
}

/// What a coordinator and a worker send of one pack; every array says which one it is.
struct Sent {
  std::string delivery, tail;
  std::shared_ptr<std::vector<std::byte>> pixels;  // who owns them
  std::string digest;

  std::shared_ptr<const Block> block() const { return block_over(*pixels, pixels); }
};

peers::Pack pack_at(std::int64_t step, std::int64_t micro_batch) {
  peers::Pack pack{.block_bytes = PackLayout(shape()).n_bytes};
  pack.delivery = {.n_samples = 1,
                   .is_last_of_step = micro_batch + 1 == kMicroBatches,
                   .state_after = {.step = static_cast<std::uint64_t>(step) + 1, .window_digest = "digest"}};
  Batch& batch = pack.delivery.batch;
  batch.shape = batch.planned = shape();
  batch.counts = {.tokens = kTokens, .step = step, .micro_batch = micro_batch, .micro_batches_in_step = kMicroBatches};
  return pack;
}

Sent sent(std::int64_t step, std::int64_t micro_batch) {
  peers::Pack pack = pack_at(step, micro_batch);
  Batch whole = pack.delivery.batch;
  const PackLayout at(shape());
  std::vector<std::byte> memory(at.n_bytes, static_cast<std::byte>(16 * step + micro_batch));
  whole.block = block_over(memory, nullptr);
  Sent out;
  out.delivery = peers::encode(pack);
  out.tail = *squeeze(whole);
  out.pixels = std::make_shared<std::vector<std::byte>>(memory.begin(),
                                                        memory.begin() + static_cast<std::ptrdiff_t>(at.pixel_bytes()));
  out.digest = digest_of(whole);
  return out;
}

Status put(HandOver& to, const Sent& pack) { return to.put(pack.delivery, pack.block(), pack.tail); }

std::string end_message(Status status = {}) {
  return peers::encode(peers::End{std::move(status), {{Reason::kMediaNotFound, 3}}});
}

std::string welcome_message() {
  return peers::encode(peers::Welcome{"data=1 model=2", {.image_rescale = 0.5, .patch = 2, .merge = 2}});
}

class HandOverTest : public ::testing::Test {
 protected:
  HandOverTest() {
    LoaderSettings s;
    s.output.data = {{.manifest = "/nowhere/rows.jsonl", .media_root = ""}};
    s.output.model = "/nowhere";
    s.output.pack = {.tokens_per_pack = kTokens, .packs_per_step = kMicroBatches};
    s.bad_samples.ledger = "/nowhere/ledger.jsonl";
    s.stall_limit_s = 30;
    s.hand_over = hand_over;
    settings = std::move(s);
  }

  std::unique_ptr<Loader> made() {
    auto loader = Loader::create(settings);
    EXPECT_TRUE(loader.ok()) << loader.status().to_string();
    return std::move(loader).value();
  }
  std::unique_ptr<Loader> opened() {
    auto loader = made();
    EXPECT_TRUE(hand_over->welcome(welcome_message()).ok());
    EXPECT_TRUE(*loader->open_within(seconds(10)));
    return loader;
  }
  /// Asks for the first batch, so that packs may come.
  std::unique_ptr<Loader> started() {
    auto loader = opened();
    EXPECT_FALSE(loader->next_within(milliseconds(0))->has_value());
    return loader;
  }

  const std::shared_ptr<HandOver> hand_over = std::make_shared<HandOver>();
  LoaderSettings settings;
};

TEST_F(HandOverTest, ALoaderGivesWhatIsPutInIt) {
  auto loader = made();
  hand_over->say("waits for a worker");
  while (loader->progress().empty()) EXPECT_FALSE(*loader->open_within(milliseconds(10)));
  EXPECT_EQ(loader->progress(), "waits for a worker");
  EXPECT_TRUE(hand_over->welcome(welcome_message()).ok());
  EXPECT_TRUE(*loader->open_within(seconds(10)));
  EXPECT_EQ(loader->pixels().image_rescale, 0.5);
  EXPECT_EQ(loader->state()->fingerprint, "data=1 model=2");
  EXPECT_FALSE(hand_over->start_within(milliseconds(0)));
  EXPECT_FALSE(hand_over->wanted_within(-1, milliseconds(0)));

  EXPECT_FALSE(loader->next_within(milliseconds(0))->has_value());
  EXPECT_EQ(hand_over->start_within(seconds(10))->cursor, PlanState());
  EXPECT_EQ(hand_over->wanted_within(-1, seconds(10)), 0);
  for (std::int64_t step = 0; step < 3; ++step) {
    for (std::int64_t k = 0; k < kMicroBatches; ++k) {
      const Sent pack = sent(step, k);
      ASSERT_TRUE(put(*hand_over, pack).ok());
      const auto batch = loader->next_within(seconds(10));
      ASSERT_TRUE(batch.ok() && *batch);
      EXPECT_EQ(digest_of(**batch), pack.digest);
      EXPECT_EQ((*batch)->at(0), pack.pixels->data()) << "pixels are not copied";
      EXPECT_EQ(hand_over->wanted_within(step - 1, seconds(10)), step);
      EXPECT_EQ(loader->state()->cursor.step, static_cast<std::uint64_t>(k == 0 ? step : step + 1));
    }
  }
  EXPECT_EQ(loader->state_after(2)->cursor.step, 2U);
  EXPECT_TRUE(hand_over->end(end_message()).ok());
  EXPECT_FALSE(loader->next_within(seconds(10))->has_value());
  EXPECT_TRUE(loader->is_at_end());
  const LoaderReport report = loader->report();
  EXPECT_EQ(report.batches, 6);
  EXPECT_EQ(report.steps, 3);
  EXPECT_EQ(report.bad.at(Reason::kMediaNotFound), 3);
  EXPECT_FALSE(report.pipeline);
  EXPECT_EQ(loader->describe(0).status().reason(), Reason::kState);
}

TEST_F(HandOverTest, ARunStartsWhereItsStateStands) {
  auto loader = opened();
  const LoaderState state{
      .fingerprint = "data=1 model=2", .cursor = {.step = 7, .window = 2, .window_digest = "d"}, .dp_size = 1};
  ASSERT_TRUE(loader->load_state(state).ok());
  EXPECT_EQ(loader->load_state({.fingerprint = "data=9 model=2", .cursor = {}}).reason(), Reason::kState);
  EXPECT_FALSE(loader->next_within(milliseconds(0))->has_value());
  EXPECT_EQ(hand_over->start_within(seconds(10))->cursor, state.cursor);
  EXPECT_EQ(hand_over->wanted_within(-1, seconds(10)), 7);
  EXPECT_EQ(put(*hand_over, sent(0, 0)).reason(), Reason::kPeerMismatch);
  EXPECT_TRUE(put(*hand_over, sent(7, 0)).ok());
}

TEST_F(HandOverTest, PacksOutOfTurnAreRefusedAndDoNoHarm) {
  EXPECT_EQ(put(*hand_over, sent(0, 0)).reason(), Reason::kPeerMismatch) << "before the start";
  auto loader = started();
  EXPECT_EQ(put(*hand_over, sent(0, 1)).reason(), Reason::kPeerMismatch);
  EXPECT_EQ(put(*hand_over, sent(1, 0)).reason(), Reason::kPeerMismatch);
  const Sent first = sent(0, 0);
  EXPECT_TRUE(put(*hand_over, first).ok());
  EXPECT_EQ(put(*hand_over, first).reason(), Reason::kPeerMismatch);
  EXPECT_TRUE(put(*hand_over, sent(0, 1)).ok());
  EXPECT_TRUE(hand_over->end(end_message()).ok());
  EXPECT_EQ(put(*hand_over, sent(1, 0)).reason(), Reason::kPeerMismatch) << "after the end";
  EXPECT_EQ(hand_over->n_unread(), 2);
  EXPECT_EQ(digest_of(**loader->next_within(seconds(10))), first.digest);
}

TEST_F(HandOverTest, ForeignBytesAreRefused) {
  auto loader = started();
  const Sent good = sent(0, 0);
  const auto refuses = [&](std::string_view delivery, std::span<const std::byte> pixels, std::string_view tail) {
    const Status status = hand_over->put(delivery, block_over(pixels, good.pixels), tail);
    return status.reason() == Reason::kPeerMismatch;
  };
  const std::span<const std::byte> pixels(*good.pixels);
  EXPECT_TRUE(refuses(good.delivery, pixels.first(pixels.size() - 1), good.tail)) << "too few pixels";
  EXPECT_TRUE(refuses(good.delivery, pixels, good.tail.substr(1)));
  EXPECT_TRUE(refuses(good.delivery, pixels, ""));
  EXPECT_TRUE(refuses("", pixels, good.tail));
  EXPECT_TRUE(refuses(end_message(), pixels, good.tail)) << "another message";
  peers::Pack pack = pack_at(0, 0);
  pack.block_bytes += 64;
  EXPECT_TRUE(refuses(peers::encode(pack), pixels, good.tail));
  pack = pack_at(0, 0);
  pack.delivery.is_last_of_step = true;
  EXPECT_TRUE(refuses(peers::encode(pack), pixels, good.tail));
  EXPECT_EQ(hand_over->welcome(welcome_message()).reason(), Reason::kPeerMismatch) << "a second one";
  EXPECT_EQ(hand_over->end(welcome_message()).reason(), Reason::kPeerMismatch);
  EXPECT_EQ(hand_over->held_bytes(), 0);
  EXPECT_EQ(good.pixels.use_count(), 1);

  std::vector<std::byte> padded(*good.pixels);
  padded.resize(200'000);
  EXPECT_TRUE(hand_over->put(good.delivery, block_over(padded, nullptr), good.tail).ok()) << "more is no harm";
  EXPECT_EQ(digest_of(**loader->next_within(seconds(10))), good.digest);
}

TEST_F(HandOverTest, PixelsAreKeptUntilTheLastArrayIsGone) {
  auto loader = started();
  const Sent pack = sent(0, 0), unread = sent(0, 1);
  ASSERT_TRUE(put(*hand_over, pack).ok() && put(*hand_over, unread).ok());
  const auto n_bytes = static_cast<std::int64_t>(PackLayout(shape()).n_bytes);
  EXPECT_EQ(hand_over->held_bytes(), 2 * n_bytes);
  EXPECT_EQ(hand_over->n_unread(), 1 + 1);
  std::optional<Batch> batch = *loader->next_within(seconds(10));
  std::shared_ptr<const Block> array = batch->block_at(batch->layout().image_patches);
  std::shared_ptr<const Block> ids = batch->block_at(batch->layout().input_ids);
  batch.reset();
  loader->close();
  EXPECT_TRUE(hand_over->is_closed());
  EXPECT_EQ(unread.pixels.use_count(), 1) << "what was not taken goes with the loader";
  EXPECT_EQ(hand_over->held_bytes(), n_bytes);
  loader.reset();
  EXPECT_GT(pack.pixels.use_count(), 1);
  EXPECT_EQ(std::memcmp(array->data(), pack.pixels->data(), array->size()), 0);
  std::jthread([last = std::move(array)]() mutable { last.reset(); }).join();
  EXPECT_EQ(pack.pixels.use_count(), 1);
  EXPECT_EQ(hand_over->held_bytes(), n_bytes - static_cast<std::int64_t>(PackLayout(shape()).pixel_bytes()));
  ids.reset();
  EXPECT_EQ(hand_over->held_bytes(), 0);
}

TEST_F(HandOverTest, WhatEndsTheRunThereComesAfterThePacks) {
  auto loader = started();
  ASSERT_TRUE(put(*hand_over, sent(0, 0)).ok() && put(*hand_over, sent(0, 1)).ok());
  ASSERT_TRUE(hand_over->end(end_message(Status(Reason::kTooManyBad, "too many"))).ok());
  EXPECT_TRUE(loader->next_within(seconds(10))->has_value());
  EXPECT_TRUE(loader->next_within(seconds(10))->has_value());
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(loader->next_within(seconds(10)).status().reason(), Reason::kTooManyBad);
    EXPECT_EQ(loader->state()->cursor.step, 1U);
  }
  EXPECT_EQ(loader->report().bad.at(Reason::kMediaNotFound), 3);
  EXPECT_TRUE(hand_over->is_closed());
}

TEST_F(HandOverTest, AFailureComesAtOnceAndStays) {
  auto loader = started();
  ASSERT_TRUE(put(*hand_over, sent(0, 0)).ok());
  EXPECT_TRUE(loader->next_within(seconds(10))->has_value());
  ASSERT_TRUE(put(*hand_over, sent(0, 1)).ok());
  hand_over->fail(Status(Reason::kPeerLost, "the coordinator is gone"));
  hand_over->fail(Status(Reason::kInternal, "another story"));
  for (int i = 0; i < 2; ++i) {
    const Status status = loader->next_within(seconds(10)).status();
    EXPECT_EQ(status.reason(), Reason::kPeerLost);
    EXPECT_EQ(status.message(), "the coordinator is gone");
    EXPECT_EQ(loader->state()->cursor.step, 0U);
  }
}

TEST_F(HandOverTest, AFailureBeforeTheWelcomeIsThatOfOpening) {
  auto loader = made();
  hand_over->fail(Status(Reason::kManifest, "no such file"));
  EXPECT_EQ(loader->open_within(seconds(10)).status().reason(), Reason::kManifest);
  EXPECT_EQ(loader->open_within(seconds(10)).status().reason(), Reason::kManifest);
}

TEST_F(HandOverTest, ClosingEndsEveryWait) {
  auto loader = started();
  std::vector<std::jthread> waiting;
  waiting.emplace_back([&] { EXPECT_FALSE(hand_over->wanted_within(0, seconds(60))); });
  waiting.emplace_back([&] { EXPECT_FALSE(loader->next_within(seconds(60)).ok()); });
  loader->close();
  waiting.clear();
  EXPECT_EQ(put(*hand_over, sent(0, 0)).reason(), Reason::kStopped);

  settings.hand_over = std::make_shared<HandOver>();
  auto unopened = made();
  waiting.emplace_back([&] { EXPECT_FALSE(settings.hand_over->start_within(seconds(60))); });
  unopened->close();
  waiting.clear();
}

TEST(HandOverClock, WaitsAreCountedWhileTheyGoOnAndNoLonger) {
  FakeClock clock;
  HandOver hand_over(clock);
  EXPECT_EQ(hand_over.waited(), Nanos(0));
  {
    std::jthread trainer([&] { EXPECT_FALSE(hand_over.take_within(seconds(60)).ok()); });
    while (hand_over.waited() < seconds(3)) clock.advance(seconds(1));  // from when it waits
    hand_over.fail(Status(Reason::kManifest, "no such file"));
  }
  const Nanos waited = hand_over.waited();
  EXPECT_GE(waited, seconds(3));
  clock.advance(seconds(100));
  EXPECT_EQ(hand_over.waited(), waited);
}

TEST_F(HandOverTest, AWaitThatLastsTooLongSaysForWhat) {
  settings.stall_limit_s = 0.02;
  settings.dp_size = 1;
  auto loader = opened();
  hand_over->say("worker 3 makes the pack again");
  Result<std::optional<Batch>> batch = std::optional<Batch>();
  while (batch.ok()) batch = loader->next_within(milliseconds(5));
  EXPECT_EQ(batch.status().reason(), Reason::kDataStall);
  EXPECT_NE(batch.status().message().find("worker 3 makes the pack again"), std::string::npos);
  EXPECT_NE(batch.status().message().find("rank 0 of 1"), std::string::npos);
  EXPECT_EQ(loader->next_within(milliseconds(5)).status().reason(), Reason::kDataStall);
  EXPECT_EQ(loader->state()->cursor.step, 0U);
  EXPECT_TRUE(hand_over->is_closed());
}

TEST_F(HandOverTest, AClientThreadAndATrainerThreadShareIt) {
  constexpr std::int64_t kSteps = 100;
  auto loader = opened();
  std::jthread client([&] {
    while (!hand_over->start_within(milliseconds(10))) continue;
    for (std::int64_t step = 0; step < kSteps; ++step) {
      while (!hand_over->wanted_within(step - 3, milliseconds(10))) continue;
      for (std::int64_t k = 0; k < kMicroBatches; ++k) EXPECT_TRUE(put(*hand_over, sent(step, k)).ok());
      EXPECT_LE(hand_over->n_unread(), 3 * kMicroBatches);
    }
    EXPECT_TRUE(hand_over->end(end_message()).ok());
  });
  std::int64_t n = 0;
  while (!loader->is_at_end()) {
    const auto batch = loader->next_within(milliseconds(100));
    ASSERT_TRUE(batch.ok()) << batch.status().to_string();
    if (!*batch) continue;
    EXPECT_EQ(digest_of(**batch), sent(n / kMicroBatches, n % kMicroBatches).digest);
    ++n;
  }
  EXPECT_EQ(n, kSteps * kMicroBatches);
}

}  // namespace
}  // namespace stoker

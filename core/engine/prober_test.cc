#include "engine/prober.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "source/memory/memory_source.h"

namespace stoker {
namespace {

using namespace std::chrono_literals;

constexpr int kMany = 100'000;
constexpr int kNone = 1'000'000;

std::string url_of(int i) { return fmt::format("mem://{}", i); }

// Every so many-th object is missing.
std::unique_ptr<Prober> open_prober(int n_objects, int missing_every, std::size_t n_bytes = 1000) {
  auto objects = std::make_shared<MemoryObjects>();
  for (int i = 0; i < n_objects; ++i) {
    if (i % missing_every != missing_every - 1) objects->put(std::to_string(i), std::string(n_bytes, 'x'));
  }
  LoaderSettings settings;
  settings.storage.environment = [](const char*) { return std::optional<std::string>(); };
  settings.storage.memory = objects;
  ProbeOptions options;
  for (int i = 0; i < n_objects; ++i) options.urls.push_back(url_of(i));
  auto prober = Prober::create(settings, options);
  EXPECT_TRUE(prober.ok()) << prober.status().to_string();
  return std::move(prober).value();
}

Result<ProbePhase> phase_of(Prober& prober, int concurrency, Nanos lasts) {
  prober.begin_phase(concurrency, lasts, 1s);
  for (;;) {
    auto phase = prober.phase_within(100ms);
    if (!phase.ok()) return phase.status();
    if (*phase) return std::move(**phase);
  }
}

TEST(Prober, CountsWhatItReadAndSaysWhenObjectsRepeat) {
  auto prober = open_prober(kMany, kNone);
  ASSERT_TRUE(prober->open_within(10s).value());
  EXPECT_EQ(prober->objects().n_objects, static_cast<std::size_t>(kMany));
  EXPECT_TRUE(prober->objects().are_local);
  std::int64_t n_requests = 0;
  for (const int concurrency : {1, 4}) {
    const auto phase = phase_of(*prober, concurrency, 20ms);
    ASSERT_TRUE(phase.ok()) << phase.status().to_string();
    EXPECT_EQ(phase->concurrency, concurrency);
    EXPECT_GT(phase->n_answers, 0);
    EXPECT_EQ(phase->n_bytes, phase->n_answers * 1000);
    EXPECT_GT(phase->elapsed_s, 0);
    EXPECT_LE(phase->elapsed_s, 0.02);
    EXPECT_EQ(phase->n_unanswered, 0);
    EXPECT_TRUE(phase->failed_tries.empty());
    ASSERT_EQ(phase->took_s.size(), phase->first_byte_s.size());
    ASSERT_EQ(phase->took_s.size(), phase->bytes.size());
    EXPECT_LE(static_cast<std::int64_t>(phase->took_s.size()), phase->n_requests);
    for (std::size_t i = 0; i < phase->took_s.size(); ++i) {
      EXPECT_GE(phase->took_s[i], phase->first_byte_s[i]);
      EXPECT_EQ(phase->bytes[i], 1000);
    }
    n_requests += phase->n_requests;
    EXPECT_EQ(phase->n_repeated > 0, n_requests > kMany);
  }
  auto few = open_prober(10, kNone);
  ASSERT_TRUE(few->open_within(10s).value());
  const auto phase = phase_of(*few, 2, 20ms);
  ASSERT_TRUE(phase.ok());
  EXPECT_EQ(phase->n_repeated, phase->n_requests - 10);
}

TEST(Prober, FailuresAreCountedByReasonAndEndNothingWhileOthersAnswer) {
  auto prober = open_prober(1000, 10);
  ASSERT_TRUE(prober->open_within(10s).value());
  const auto phase = phase_of(*prober, 4, 50ms);
  ASSERT_TRUE(phase.ok()) << phase.status().to_string();
  ASSERT_EQ(phase->failed_tries.size(), 1U);
  const auto [reason, n] = *phase->failed_tries.begin();
  EXPECT_EQ(reason, Reason::kMediaNotFound);
  EXPECT_NEAR(static_cast<double>(n) / static_cast<double>(phase->n_requests), 0.1, 0.1);
}

TEST(Prober, NothingThatCanBeReadIsAnError) {
  auto prober = open_prober(1000, 1);
  ASSERT_TRUE(prober->open_within(10s).value());
  const auto phase = phase_of(*prober, 4, 20ms);
  ASSERT_FALSE(phase.ok());
  EXPECT_EQ(phase.status().reason(), Reason::kMediaNotFound);
  auto one = open_prober(1, 1);
  const auto opened = one->open_within(10s);
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.status().reason(), Reason::kMediaNotFound);
}

TEST(Prober, OneLargeObjectIsReadInParts) {
  auto prober = open_prober(1, kNone, 5 * Prober::kPartBytes + 17);
  ASSERT_TRUE(prober->open_within(10s).value());
  EXPECT_TRUE(prober->objects().are_parts);
  EXPECT_EQ(prober->objects().n_objects, 5U);
  const auto phase = phase_of(*prober, 2, 50ms);
  ASSERT_TRUE(phase.ok());
  // A byte more in each round over the parts: equal requests would be joined.
  const auto n_rounds = static_cast<double>(phase->n_requests / 5 + 1);
  for (const double n_bytes : phase->bytes) {
    EXPECT_GE(n_bytes, static_cast<double>(Prober::kPartBytes));
    EXPECT_LE(n_bytes, static_cast<double>(Prober::kPartBytes) + n_rounds);
  }
}

TEST(Prober, APhaseEndsAtOnceWithWhatItMeasured) {
  auto prober = open_prober(100, kNone);
  ASSERT_TRUE(prober->open_within(10s).value());
  prober->begin_phase(4, 1h, 1h);
  EXPECT_FALSE(prober->phase_within(20ms).value().has_value());
  const ProbePhase phase = prober->end_phase();
  EXPECT_GT(phase.n_answers, 0);
  EXPECT_LT(phase.whole_s, 60);
}

}  // namespace
}  // namespace stoker

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <fstream>
#include <future>
#include <latch>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "data/pack_wire.h"
#include "engine/coordinator.h"
#include "engine/loader.h"
#include "engine/pack_worker.h"
#include "engine/run_fixture_for_test.h"
#include "pipeline/task_wire.h"

namespace stoker {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

/// What a run gave: by rank, and over all of them.
struct WhatCame {
  std::vector<std::vector<std::string>> digests;   // (ranks) of its batches
  std::vector<std::vector<PlanState>> steps;       // (ranks) the state after each of its steps
  std::vector<std::vector<std::int64_t>> targets;  // (ranks) target_tokens of its batches
  std::set<std::string> ledger;                    // lines
  std::map<Reason, std::int64_t> bad;
  std::int64_t samples = 0;
  Status ended;  // OK: at the end of the data, or when enough was taken
};

class RemoteTest : public stoker::testing::RunFixture {
 protected:
  static std::set<std::string> ledger_of(const LoaderSettings& s) {
    std::ifstream in(s.bad_samples.ledger);
    std::set<std::string> lines;
    for (std::string line; std::getline(in, line);) lines.insert(line);
    fs::remove(s.bad_samples.ledger);
    return lines;
  }
  /// A folder that nobody has looked at before: what is known of lengths changes who reads rows.
  static void take_new_index(LoaderSettings& s) {
    static int n = 0;
    s.index_dir = (folder_ / ("index" + std::to_string(n++))).string();
  }

  static WhatCame in_process(LoaderSettings s, std::int32_t dp_size, std::size_t n_steps, const PlanState& from = {}) {
    take_new_index(s);
    s.dp_size = dp_size;
    s.exchange.kind = ExchangeKind::kDir;
    s.exchange.job = "job";
    WhatCame run;
    const auto n = static_cast<std::size_t>(dp_size);
    run.digests.resize(n);
    run.steps.resize(n);
    run.targets.resize(n);
    std::vector<Status> ended(n);
    std::vector<LoaderReport> reports(n);
    {
      std::vector<std::jthread> ranks;
      for (std::size_t r = 0; r < n; ++r) {
        ranks.emplace_back([&, r] {
          LoaderSettings own = s;
          own.dp_rank = static_cast<std::int32_t>(r);
          const auto loader = opened(own);
          if (from != PlanState{}) {
            LoaderState state = loader->state().value();
            state.cursor = from;
            EXPECT_TRUE(loader->load_state(state).ok());
          }
          while (run.steps[r].size() < n_steps) {
            auto batch = loader->next_within(milliseconds(1000));
            if (!batch.ok()) ended[r] = batch.status();
            if (!batch.ok() || loader->is_at_end()) break;
            if (!*batch) continue;
            run.digests[r].push_back(digest_of(**batch));
            run.targets[r].push_back((*batch)->counts.target_tokens);
            const BatchCounts& counts = (*batch)->counts;
            if (counts.micro_batch + 1 == counts.micro_batches_in_step) {
              run.steps[r].push_back(loader->state().value().cursor);
            }
          }
          reports[r] = loader->report();
        });
      }
    }
    for (std::size_t r = 0; r < n; ++r) {
      if (!ended[r].ok()) run.ended = ended[r];
      for (const auto& [reason, count] : reports[r].bad) run.bad[reason] += count;
      run.samples += reports[r].samples;
    }
    run.ledger = ledger_of(s);
    return run;
  }

  template <typename Engine>
  static std::unique_ptr<Engine> opened_engine(const LoaderSettings& s) {
    auto engine = Engine::create(s);
    EXPECT_TRUE(engine.ok()) << engine.status().to_string();
    for (;;) {
      const auto is_open = (*engine)->open_within(milliseconds(1000));
      EXPECT_TRUE(is_open.ok()) << is_open.status().to_string();
      if (!is_open.ok() || *is_open) return std::move(engine).value();
    }
  }
  static std::unique_ptr<Coordinator> started(const LoaderSettings& s, const PlanState& from = {}) {
    auto coordinator = opened_engine<Coordinator>(s);
    const LoaderState state{.fingerprint = coordinator->fingerprint().value(), .cursor = from, .dp_size = 1};
    EXPECT_EQ(coordinator->start(state, {}).to_string(), Status().to_string());
    return coordinator;
  }
  /// As the rank gets it.
  static Batch arrived(const peers::Pack& pack, const MadePack& made) {
    Batch batch = pack.delivery.batch;
    EXPECT_EQ(made.pixels().size(), batch.layout().pixel_bytes());
    batch.block = expand(made.tail, batch.layout()).value();
    batch.pixels = block_over(made.pixels(), made.batch.block);
    return batch;
  }
  /// The next task of a run that has one.
  static TaskInfo next_task(Coordinator& coordinator) {
    for (;;) {
      auto task = coordinator.next_task_within(milliseconds(1000));
      EXPECT_TRUE(task.ok()) << task.status().to_string();
      if (!task.ok() || *task) return task.ok() ? *std::move(*task) : TaskInfo();
    }
  }

  static WhatCame remote(LoaderSettings s, std::int32_t dp_size, std::size_t n_steps, const PlanState& from = {}) {
    constexpr std::size_t kWorkers = 2, kUnderWay = 6;
    take_new_index(s);
    s.dp_size = dp_size;
    WhatCame run;
    const auto n = static_cast<std::size_t>(dp_size);
    run.digests.resize(n);
    run.steps.resize(n);
    run.targets.resize(n);
    std::vector<std::unique_ptr<PackWorker>> workers;
    LoaderSettings of_worker = s;
    of_worker.speed.memory_limit_bytes = 24U << 20;
    of_worker.speed.cpu_threads = 1;
    for (std::size_t w = 0; w < kWorkers; ++w) workers.push_back(opened_engine<PackWorker>(of_worker));
    const auto coordinator = started(s, from);
    EXPECT_EQ(workers.front()->fingerprint().value(), coordinator->fingerprint().value());
    struct UnderWay {
      TaskInfo task;
      std::future<Result<MadePack>> made;
    };
    std::deque<UnderWay> under_way;
    std::size_t n_tasks = 0;
    const auto is_enough = [&] {
      return std::all_of(run.steps.begin(), run.steps.end(),
                         [&](const auto& steps) { return steps.size() >= n_steps; });
    };
    while (run.ended.ok() && !is_enough()) {
      std::optional<TaskInfo> task;
      if (under_way.size() < kUnderWay && !coordinator->is_at_end()) {
        auto got = coordinator->next_task_within(milliseconds(under_way.empty() ? 1000 : 5));
        if (!got.ok()) {
          run.ended = got.status();
          break;
        }
        task = std::move(*got);
      }
      if (task) {
        PackWorker& worker = *workers[n_tasks++ % kWorkers];
        auto made =
            std::async(std::launch::async, [&worker, message = task->message] { return worker.make(message, {}); });
        under_way.push_back({*std::move(task), std::move(made)});
        continue;
      }
      if (under_way.empty()) {
        if (coordinator->is_at_end()) break;
        continue;
      }
      const auto first = std::move(under_way.front());
      under_way.pop_front();
      const auto made = const_cast<UnderWay&>(first).made.get();
      EXPECT_TRUE(made.ok()) << made.status().to_string();
      if (!made.ok()) break;
      auto delivery = coordinator->deliver(first.task.sequence, made->made);
      if (!delivery.ok()) {
        run.ended = delivery.status();
        break;
      }
      const auto message = peers::decode(*delivery);
      EXPECT_TRUE(message.ok() && std::holds_alternative<peers::Pack>(*message));
      const auto& pack = std::get<peers::Pack>(*message);
      const auto rank = static_cast<std::size_t>(first.task.rank);
      EXPECT_EQ(pack.sequence, run.digests[rank].size());
      EXPECT_LE(made->n_bytes(), first.task.n_bytes);
      run.digests[rank].push_back(digest_of(arrived(pack, *made)));
      run.targets[rank].push_back(pack.delivery.batch.counts.target_tokens);
      if (pack.delivery.is_last_of_step) {
        run.steps[rank].push_back(pack.delivery.state_after);
        EXPECT_TRUE(coordinator->want_step(static_cast<std::int64_t>(pack.delivery.state_after.step)).ok());
      }
    }
    if (run.ended.ok() && coordinator->is_at_end()) {
      const auto end = coordinator->end();
      EXPECT_TRUE(end.ok()) << end.status().to_string();
      EXPECT_TRUE(end.ok() && std::holds_alternative<peers::End>(*peers::decode(*end)));
    }
    const CoordinatorReport report = coordinator->report();
    run.bad = report.bad;
    run.samples = report.samples;
    run.ledger = ledger_of(s);
    return run;
  }

  static void expect_equal(const WhatCame& found, const WhatCame& expected, const std::string& what) {
    EXPECT_EQ(found.digests, expected.digests) << what;
    EXPECT_EQ(found.steps, expected.steps) << what;
    EXPECT_EQ(found.targets, expected.targets) << what;
    EXPECT_EQ(found.samples, expected.samples) << what;
    EXPECT_EQ(found.ended.to_string(), expected.ended.to_string()) << what;
  }

  static LoaderSettings of_four() {
    LoaderSettings s = settings();
    s.output.pack.packs_per_step = 4;
    s.output.window_samples = 10;
    return s;
  }
};

TEST_F(RemoteTest, GivesTheBatchesOfTheInProcessLoaders) {
  std::vector<std::pair<std::string, LoaderSettings>> variants;
  variants.emplace_back("packed", of_four());
  variants.emplace_back("rows of samples", of_four()).second.output.pack.form = PackForm::kSamples;
  variants.back().second.output.pack.samples_per_pack = 2;
  variants.emplace_back("aligned and padded", of_four()).second.output.pack.align_samples_to = 8;
  variants.back().second.output.pack.pad_to = 32;
  variants.emplace_back("two manifests", of_four())
      .second.output.data.push_back(
          {.manifest = (folder_ / "rows.jsonl").string(), .media_root = "", .share = {Share::Kind::kRepeat, 2}});
  variants.emplace_back("clips", of_four()).second.output.data = {
      {.manifest = (folder_ / "clips.jsonl").string(), .media_root = ""}};
  variants.back().second.output.pack.tokens_per_pack = 512;
  for (const auto& [name, s] : variants) {
    for (const std::int32_t dp_size : name == "packed" ? std::vector{1, 2, 4} : std::vector{2}) {
      const WhatCame expected = in_process(s, dp_size, 5);
      ASSERT_GE(expected.digests[0].size(), 5U) << name;
      expect_equal(remote(s, dp_size, 5), expected, name + " on " + std::to_string(dp_size));
    }
  }
}

TEST_F(RemoteTest, FiniteDataEndsWithDummiesAndTheWholeLedger) {
  LoaderSettings s = of_four();
  s.output.epochs = 1;
  for (const std::int32_t dp_size : {1, 4}) {
    const WhatCame expected = in_process(s, dp_size, 100);
    const WhatCame found = remote(s, dp_size, 100);
    expect_equal(found, expected, std::to_string(dp_size));
    EXPECT_EQ(found.ledger, expected.ledger);
    EXPECT_EQ(found.bad, expected.bad);
    EXPECT_EQ(found.ledger.size(), 3U);
    EXPECT_EQ(found.samples, 12);
  }
}

TEST_F(RemoteTest, GoesOnFromAStateWithAnotherNumberOfRanks) {
  const LoaderSettings s = of_four();
  const WhatCame whole = in_process(s, 2, 6);
  for (const std::int32_t dp_size : {1, 4}) {
    const PlanState& from = whole.steps[0][2];
    expect_equal(remote(s, dp_size, 3, from), in_process(s, dp_size, 3, from), std::to_string(dp_size));
  }
  LoaderState other{.fingerprint = "seed=1", .cursor = {}, .dp_size = 1};
  const auto coordinator = opened_engine<Coordinator>(s);
  EXPECT_EQ(opened(s)->state().value().fingerprint, coordinator->fingerprint().value());
  EXPECT_EQ(coordinator->start(other, {}).reason(), Reason::kState);
  other.fingerprint = coordinator->fingerprint().value();
  EXPECT_TRUE(coordinator->start(other, {}).ok());
  EXPECT_EQ(coordinator->start(other, {}).reason(), Reason::kState);
}

TEST_F(RemoteTest, BadSamplesEndTheRunOfAllRanks) {
  LoaderSettings s = of_four();
  s.output.epochs = 1;
  s.output.shuffle = Shuffle::kNone;
  s.bad_samples.max_fraction = 0.08;  // the broken row, and one of the two others
  EXPECT_EQ(remote(s, 4, 100).ended.reason(), Reason::kTooManyBad);
  s.bad_samples.max_fraction = 1;
  s.bad_samples.policy = BadSamplePolicy::kStop;
  const WhatCame expected = in_process(s, 1, 100);
  const WhatCame found = remote(s, 1, 100);
  EXPECT_EQ(found.ended.reason(), expected.ended.reason());
  EXPECT_EQ(found.ended.message(), expected.ended.message());
  EXPECT_EQ(found.digests, expected.digests);
}

TEST_F(RemoteTest, WhatKillsAWorkerIsGivenUpAlone) {
  LoaderSettings s = of_four();
  s.output.shuffle = Shuffle::kNone;
  const auto coordinator = started(s);
  const auto worker = opened_engine<PackWorker>(s);
  const TaskInfo task = next_task(*coordinator);
  ASSERT_GE(task.n_samples, 2);
  for (std::uint32_t i = 0; i < task.n_samples; ++i) {  // each may be tried apart
    const auto tried = worker->make(task.message, {.only = i});
    ASSERT_TRUE(tried.ok()) << tried.status().to_string();
    EXPECT_TRUE(tried->made.empty() && tried->tail.empty() && tried->pixels().empty());
  }
  const std::vector<std::uint32_t> rejected{1, 1};
  const auto made = worker->make(task.message, {.rejected = rejected, .why_rejected = "killed by signal 9, 2 times"});
  ASSERT_TRUE(made.ok()) << made.status().to_string();
  const auto delivery = coordinator->deliver(task.sequence, made->made);
  ASSERT_TRUE(delivery.ok()) << delivery.status().to_string();
  const auto message = peers::decode(*delivery);
  const auto& pack = std::get<peers::Pack>(*message);
  EXPECT_EQ(pack.delivery.n_samples, task.n_samples - 1);
  EXPECT_TRUE(pack.delivery.batch.counts.is_step_target_upper_bound);
  const Batch batch = arrived(pack, *made);
  EXPECT_EQ(batch.shape.samples, task.n_samples - 1);
  const auto lost = decode_task(task.message).value().members[1].order_index;
  const auto* ids = batch.array<std::int64_t>(batch.layout().sample_ids);
  for (std::int64_t i = 0; i < batch.shape.samples; ++i) EXPECT_NE(ids[i], static_cast<std::int64_t>(lost));
  EXPECT_EQ(coordinator->report().bad.at(Reason::kWorkerKilled), 1);
  const std::set<std::string> ledger = ledger_of(s);
  EXPECT_TRUE(std::any_of(ledger.begin(), ledger.end(), [](const std::string& line) {
    return line.find("WORKER_KILLED") != std::string::npos && line.find("signal 9, 2 times") != std::string::npos;
  }));
  // All of a pack may go: a dummy stands for it.
  const TaskInfo next = next_task(*coordinator);
  std::vector<std::uint32_t> all;
  for (std::uint32_t i = 0; i < next.n_samples; ++i) all.push_back(i);
  const auto empty = worker->make(next.message, {.rejected = all});
  ASSERT_TRUE(empty.ok()) << empty.status().to_string();
  EXPECT_TRUE(coordinator->deliver(next.sequence, empty->made).ok());
  EXPECT_EQ(empty->batch.shape.samples, 1);
  EXPECT_EQ(worker->make(next.message, {.rejected = std::vector<std::uint32_t>{99}}).status().reason(),
            Reason::kPeerMismatch);
}

TEST_F(RemoteTest, TakesOnlyTheResultOfATask) {
  const LoaderSettings s = of_four();
  const auto coordinator = started(s);
  const auto worker = opened_engine<PackWorker>(s);
  const TaskInfo first = next_task(*coordinator), second = next_task(*coordinator);
  auto made = worker->make(first.message, {});
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(coordinator->deliver(second.sequence, made->made).status().reason(), Reason::kPeerMismatch);
  EXPECT_EQ(coordinator->deliver(first.sequence, "made").status().reason(), Reason::kPeerMismatch);
  EXPECT_EQ(coordinator->deliver(99, made->made).status().reason(), Reason::kPeerMismatch);
  MadeMessage changed = decode_made(made->made).value();
  ++changed.pack.delivery.batch.counts.cost;
  EXPECT_EQ(coordinator->deliver(first.sequence, encode_made(changed)).status().reason(), Reason::kPeerMismatch);
  changed = decode_made(made->made).value();
  changed.found_late.push_back({1'000'000, "", Status(Reason::kImgCorrupt, "no")});
  --changed.pack.delivery.n_samples;
  EXPECT_EQ(coordinator->deliver(first.sequence, encode_made(changed)).status().reason(), Reason::kPeerMismatch);
  const auto again = worker->make(second.message, {});
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(coordinator->deliver(second.sequence, again->made).status().reason(), Reason::kInternal) << "out of turn";
  EXPECT_TRUE(coordinator->deliver(first.sequence, made->made).ok());
  EXPECT_EQ(coordinator->deliver(first.sequence, made->made).status().reason(), Reason::kInternal) << "twice";
  EXPECT_TRUE(coordinator->deliver(second.sequence, again->made).ok());
  EXPECT_EQ(worker->make("no task", {}).status().reason(), Reason::kPeerMismatch);
  TaskMessage task = decode_task(second.message).value();
  task.members.front().tokens += 1;
  EXPECT_EQ(worker->make(encode_task(task), {}).status().reason(), Reason::kPlanMismatch);
  task = decode_task(second.message).value();
  for (int i = 0; i < 9; ++i) task.members.push_back(task.members.front());
  EXPECT_EQ(worker->make(encode_task(task), {}).status().reason(), Reason::kPeerMismatch);
}

TEST_F(RemoteTest, AClosedWorkerLetsEverybodyGo) {
  LoaderSettings s = of_four();
  const auto coordinator = started(s);
  std::vector<std::string> messages;
  for (int i = 0; i < 8; ++i) messages.push_back(next_task(*coordinator).message);
  for (int round = 0; round < 6; ++round) {
    const auto worker = opened_engine<PackWorker>(s);
    std::atomic<int> n_made{0};
    std::latch running(4);
    std::vector<std::jthread> threads;
    for (std::size_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        running.count_down();
        for (std::size_t i = t;; ++i) {
          const auto made = worker->make(messages[i % messages.size()], {});
          if (!made.ok()) {
            EXPECT_EQ(made.status().reason(), Reason::kStopped) << made.status().to_string();
            return;
          }
          ++n_made;
        }
      });
    }
    running.wait();
    while (round % 2 == 1 && n_made < 3) std::this_thread::yield();
    const auto began = std::chrono::steady_clock::now();
    worker->close();
    threads.clear();
    EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(1));
    EXPECT_EQ(worker->report().n_making, 0);
  }
  (void)PackWorker::create(s);  // ends while it opens
  (void)Coordinator::create(s);
  coordinator->close();
  EXPECT_EQ(coordinator->next_task_within(milliseconds(0)).status().reason(), Reason::kClosed);
}

}  // namespace
}  // namespace stoker

#include "exchange/exchange.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <latch>
#include <map>
#include <set>
#include <thread>
#include <vector>

#include "exchange/dir_store.h"
#include "exchange/foreign_store.h"
#include "exchange/tcp_server.h"
#include "exchange/tcp_store.h"
#include "exchange/value_table.h"
#include "exchange/wire.h"

namespace stoker {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// A job of several ranks: gives each a store of the same values.
class Job {
 public:
  virtual ~Job() = default;
  virtual std::unique_ptr<ValueStore> store() = 0;
  virtual std::size_t n_values() = 0;  ///< alive, of all windows
};

class DirJob final : public Job {
 public:
  DirJob() : folder_(std::filesystem::temp_directory_path() / ("stoker-exchange-" + random_hex(8))) {}
  ~DirJob() override { std::filesystem::remove_all(folder_); }
  std::unique_ptr<ValueStore> store() override { return open_dir_store(folder_.string(), "").value(); }
  std::size_t n_values() override {
    std::size_t n = 0;
    for (const auto& at : std::filesystem::recursive_directory_iterator(folder_)) n += at.is_regular_file();
    return n;
  }

 private:
  const std::filesystem::path folder_;
};

class TcpJob final : public Job {
 public:
  TcpJob() : server_(TcpServer::start({.address = "127.0.0.1", .ports = {0}, .secret = "secret"}).value()) {}
  std::unique_ptr<ValueStore> store() override {
    return make_tcp_store({.host = "127.0.0.1", .ports = {server_->port()}, .secret = "secret"});
  }
  std::size_t n_values() override { return server_->n_values(); }

 private:
  std::unique_ptr<TcpServer> server_;
};

/// As torch.distributed's stores answer.
class Words final : public KeyValues {
 public:
  Result<std::string> compare_set(const std::string& key, const std::string& expected,
                                  const std::string& desired) override {
    const std::lock_guard lock(mu);
    const auto there = values.find(key);
    if (there == values.end()) {
      if (!expected.empty()) return expected;
      values[key] = desired;
      return desired;
    }
    if (there->second == expected) there->second = desired;
    return there->second;
  }
  Status erase(const std::string& key) override {
    const std::lock_guard lock(mu);
    values.erase(key);
    return {};
  }
  std::string describe() const override { return "words"; }

  std::mutex mu;
  std::map<std::string, std::string> values;
};

class ForeignJob final : public Job {
 public:
  std::unique_ptr<ValueStore> store() override { return make_foreign_store(words_); }
  std::size_t n_values() override {
    const std::lock_guard lock(words_->mu);
    return words_->values.size();
  }

 private:
  const std::shared_ptr<Words> words_ = std::make_shared<Words>();
};

struct Kind {
  const char* name;
  std::function<std::unique_ptr<Job>()> make;
};

/// What every kind of exchange owes.
class ExchangeContract : public ::testing::TestWithParam<Kind> {
 protected:
  std::unique_ptr<Exchange> rank(int number, const std::string& space = "run") {
    return std::make_unique<Exchange>(job_->store(), space, "rank " + std::to_string(number), clock_);
  }
  const std::stop_token never_ = {};
  FakeClock clock_;
  std::unique_ptr<Job> job_ = GetParam().make();
};

TEST_P(ExchangeContract, TheFirstToPutWins) {
  const auto a = rank(0);
  const auto b = rank(1);
  const std::string any("\0\xff any\n", 7);
  EXPECT_EQ(a->get(3, "x", never_).value(), std::nullopt);
  EXPECT_EQ(a->put(3, "x", any, never_).value(), any);
  EXPECT_EQ(b->put(3, "x", "other", never_).value(), any);
  EXPECT_EQ(b->get(3, "x", never_).value(), any);
  EXPECT_EQ(b->get(4, "x", never_).value(), std::nullopt);
  EXPECT_EQ(rank(2, "another-run")->get(3, "x", never_).value(), std::nullopt);
  EXPECT_EQ(a->put_in("job", "x", "kept", never_).value(), "kept");
  EXPECT_EQ(b->wait_in("job", "x", milliseconds(0), never_).value(), "kept");
  EXPECT_EQ(a->put(3, "x", "", never_).status().reason(), Reason::kInternal);
  EXPECT_EQ(a->put(3, "../x", "no name", never_).status().reason(), Reason::kInternal);
}

TEST_P(ExchangeContract, LargeValuesComeBackWhole) {
  std::string large(3'000'000, 'a');
  for (std::size_t i = 0; i < large.size(); i += 997) large[i] = static_cast<char>(i);
  ASSERT_EQ(rank(0)->put(1, "large", large, never_).value(), large);
  EXPECT_TRUE(rank(1)->get(1, "large", never_).value() == large);
  EXPECT_FALSE(rank(0)->put(1, "too-large", std::string(ValueStore::kMostValueBytes + 1, 'a'), never_).ok());
}

TEST_P(ExchangeContract, OfManyAtTheSameTimeOneIsFirst) {
  constexpr int kRanks = 6;
  constexpr int kKeys = 20;
  std::latch all(kRanks);
  std::vector<std::vector<std::string>> got(kRanks);
  {
    std::vector<std::jthread> threads;
    for (int r = 0; r < kRanks; ++r) {
      threads.emplace_back([&, r] {
        const auto mine = rank(r);
        all.arrive_and_wait();
        for (int k = 0; k < kKeys; ++k) {
          got[r].push_back(mine->put(k, "x", "of rank " + std::to_string(r), never_).value());
        }
      });
    }
  }
  for (int r = 1; r < kRanks; ++r) EXPECT_EQ(got[r], got[0]);
  EXPECT_EQ(job_->n_values(), static_cast<std::size_t>(kKeys));  // nothing half written is left
}

TEST_P(ExchangeContract, WaitsForAValueAndCanBeStopped) {
  const auto a = rank(0);
  const auto b = rank(1);
  EXPECT_EQ(a->wait(1, "x", milliseconds(1), never_).value(), std::nullopt);
  std::stop_source stop;
  std::latch waiting(2);
  std::jthread gets([&] {
    waiting.count_down();
    std::optional<std::string> got;
    while (!got) got = a->wait(1, "x", seconds(10), never_).value();
    EXPECT_EQ(got, "there");
  });
  const auto c = rank(2);
  std::jthread stops([&] {
    waiting.count_down();
    EXPECT_EQ(c->wait(1, "y", seconds(10), stop.get_token()).status().reason(), Reason::kStopped);
  });
  waiting.wait();
  ASSERT_TRUE(b->put(1, "x", "there", never_).ok());
  gets.join();
  const auto began = std::chrono::steady_clock::now();
  stop.request_stop();
  stops.join();
  EXPECT_LT(std::chrono::steady_clock::now() - began, seconds(1));
}

TEST_P(ExchangeContract, AClaimIsHeldWhileItIsRenewed) {
  const auto a = rank(0);
  const auto b = rank(1);
  const Nanos lease = seconds(5);
  EXPECT_TRUE(a->claim(1, "share", lease, never_)->is_mine);
  EXPECT_TRUE(a->claim(1, "share", lease, never_)->is_mine);
  for (int i = 0; i < 4; ++i) {
    const Claimed claim = b->claim(1, "share", lease, never_).value();
    EXPECT_FALSE(claim.is_mine);
    EXPECT_EQ(claim.holder, "rank 0");
    clock_.advance(seconds(4));
    EXPECT_TRUE(a->renew(1, "share", never_).value());
  }
  EXPECT_FALSE(b->claim(1, "share", lease, never_)->is_mine);  // sees the renewal
  clock_.advance(seconds(4));
  EXPECT_FALSE(b->claim(1, "share", lease, never_)->is_mine);
  clock_.advance(seconds(1));
  const Claimed taken = b->claim(1, "share", lease, never_).value();
  EXPECT_TRUE(taken.is_mine && taken.is_taken_over);
  EXPECT_FALSE(a->renew(1, "share", never_).value());
  EXPECT_EQ(a->claim(1, "share", lease, never_)->holder, "rank 1");
}

TEST_P(ExchangeContract, OldWindowsGo) {
  const auto a = rank(0);
  const auto b = rank(1);
  for (std::uint64_t w = 0; w < 40; ++w) {
    ASSERT_TRUE(a->put(w, "x", "value", never_).ok());
    ASSERT_TRUE(b->claim(w, "share", seconds(5), never_)->is_mine);
    ASSERT_TRUE(a->drop_before(w < 4 ? 0 : w - 4, never_).ok());
    ASSERT_TRUE(b->drop_before(w < 4 ? 0 : w - 4, never_).ok());
    EXPECT_LE(job_->n_values(), 10u);
  }
  EXPECT_EQ(b->get(34, "x", never_).value(), std::nullopt);
  EXPECT_EQ(b->get(35, "x", never_).value(), "value");
  // Who is late starts again with such a window.
  EXPECT_EQ(b->put(3, "x", "again", never_).value(), "again");
  EXPECT_TRUE(rank(2)->claim(3, "share", seconds(5), never_)->is_mine);
}

INSTANTIATE_TEST_SUITE_P(Kinds, ExchangeContract,
                         ::testing::Values(Kind{"dir", [] { return std::make_unique<DirJob>(); }},
                                           Kind{"tcp", [] { return std::make_unique<TcpJob>(); }},
                                           Kind{"foreign", [] { return std::make_unique<ForeignJob>(); }}),
                         [](const auto& kind) { return kind.param.name; });

// --- dir

class DirStoreTest : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  static void make_old(const std::filesystem::path& path) {
    std::filesystem::last_write_time(path, std::filesystem::file_time_type::clock::now() - std::chrono::hours(25));
  }
  const std::filesystem::path folder_ = std::filesystem::temp_directory_path() / ("stoker-dir-store-" + random_hex(8));
  const std::stop_token never_ = {};
};

TEST_F(DirStoreTest, WhatEarlierJobsLeftGoesAfterADay) {
  const std::filesystem::path plans = folder_ / "plans", exchange = folder_ / "exchange";
  for (const char* name : {"old/3", "used/4"}) std::filesystem::create_directories(exchange / name);
  std::filesystem::create_directories(plans / "run");
  std::ofstream(plans / "run" / "window-1") << "digest";
  for (const auto& path : {exchange / "old" / "3", exchange / "old", exchange / "used", plans / "run", plans}) {
    make_old(path);
  }
  ASSERT_TRUE(open_dir_store(exchange.string(), plans.string()).ok());
  EXPECT_FALSE(std::filesystem::exists(exchange / "old"));
  EXPECT_TRUE(std::filesystem::exists(exchange / "used"));
  EXPECT_FALSE(std::filesystem::exists(plans));
}

TEST_F(DirStoreTest, WhatACrashLeftEmptyIsNothing) {
  const auto store = open_dir_store(folder_.string(), "").value();
  std::filesystem::create_directories(folder_ / "run" / "1");
  std::ofstream(folder_ / "run" / "1" / "x").flush();
  EXPECT_EQ(store->get({"run", 1, "x"}, milliseconds(0), never_).value(), std::nullopt);
  EXPECT_EQ(store->compare_set({"run", 1, "x"}, "", "value", never_).value(), "value");
}

TEST_F(DirStoreTest, AFolderThatCannotBeMadeIsSaid) {
  EXPECT_EQ(open_dir_store("/proc/no/such", "").status().reason(), Reason::kIndexDir);
}

// --- the service's memory, and its messages

TEST(ValueTable, TheWindowsThatBeganFirstMakeRoom) {
  ValueTable table(100'000);
  ASSERT_NE(table.compare_set({"job", StoreKey::kKept, "hello"}, "", "kept"), nullptr);
  for (std::uint64_t w = 100; w-- > 0;) table.compare_set({"run", w, "x"}, "", std::string(10'000, 'a'));
  EXPECT_LE(table.n_bytes(), 100'000u);
  EXPECT_EQ(table.get({"run", 99, "x"}), nullptr);
  EXPECT_NE(table.get({"run", 0, "x"}), nullptr);
  EXPECT_NE(table.get({"job", StoreKey::kKept, "hello"}), nullptr);
  table.drop_before("run", 100);
  EXPECT_EQ(table.n_windows(), 1u);
  for (int i = 0; i < 1000; ++i) table.compare_set({"job", StoreKey::kKept, std::to_string(i)}, "", "small");
  EXPECT_LE(table.n_bytes(), 100'000u);
}

TEST(Wire, RequestsComeBackAsTheyWent) {
  const wire::Request request{.kind = wire::Request::Kind::kCompareSet,
                              .key = {"run", 1ull << 40, "share-3"},
                              .expected = "old",
                              .desired = std::string("\0\xff", 2)};
  const std::string message = wire::encode(request);
  const wire::Request back = wire::decode_request(message).value();
  EXPECT_EQ(back.key, request.key);
  EXPECT_EQ(back.expected, request.expected);
  EXPECT_EQ(back.desired, request.desired);
  for (std::size_t n = 0; n < message.size(); ++n) EXPECT_FALSE(wire::decode_request(message.substr(0, n)).ok());
  EXPECT_FALSE(wire::decode_request(message + "x").ok());
}

TEST(Wire, AProofIsHmacSha256) {
  // python: hmac.new(sha256(b"secret").digest(), b"client\0nonce-1nonce-2", sha256).hexdigest()
  std::string hex;
  for (const char c : wire::proof_of("secret", "client", "nonce-1", "nonce-2")) {
    hex += fmt::format("{:02x}", static_cast<unsigned char>(c));
  }
  EXPECT_EQ(hex, "1776d8c0fd3365c2d7217acf609eed12c2d546a93c9ec94fd69ab785219e298a");
  EXPECT_NE(wire::proof_of("secret", "client", "a", "b"), wire::proof_of("secret", "server", "a", "b"));
  EXPECT_NE(wire::proof_of("secret", "client", "a", "b"), wire::proof_of("secrets", "client", "a", "b"));
}

}  // namespace
}  // namespace stoker

#include "source/cache/cache_stage.h"

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "source/source.h"
#include "source/testing/fetch_fixture.h"
#include "source/testing/loopback_server.h"

namespace stoker {
namespace {

using namespace stoker::testing;
using namespace std::chrono_literals;

// A store whose objects have versions, and which counts what it sends.
class Store {
 public:
  ServerReply operator()(const ServerRequest& request) {
    const int version = version_;
    const std::string tag = fmt::format("\"{}-{}\"", request.target, version);
    const auto only_if_not = request.headers.find("if-none-match");
    if (only_if_not != request.headers.end()) ++n_conditional_;
    if (only_if_not != request.headers.end() && only_if_not->second == tag && !ignores_conditions_) {
      ServerReply same;
      same.status = 304;
      same.headers = {{"ETag", tag}};
      ++n_unchanged_;
      return same;
    }
    ServerReply reply = serve(request);
    if (version > 0) std::reverse(reply.body.begin(), reply.body.end());
    reply.headers[0].second = tag;
    ++n_bodies_;
    return reply;
  }
  static std::string object(const std::string& target, int version) {
    std::string body = object_of(target);
    if (version > 0) std::reverse(body.begin(), body.end());
    return body;
  }

  std::atomic<int> version_{0};
  std::atomic<bool> ignores_conditions_{false};
  std::atomic<int> n_bodies_{0}, n_unchanged_{0}, n_conditional_{0};
};

class CachedFetcher : public ::testing::Test {
 protected:
  CachedFetcher() : server_([this](const ServerRequest& r) { return store_(r); }) {
    std::string name = access("/dev/shm", W_OK) == 0 ? "/dev/shm/stoker-cache-XXXXXX" : "/tmp/stoker-cache-XXXXXX";
    dir_ = mkdtemp(name.data());
  }
  ~CachedFetcher() override { std::filesystem::remove_all(dir_); }

  std::unique_ptr<Fetcher> cached(bool is_validated = true, std::uint64_t limit = 1 << 20) {
    FetchSettings s = settings_for(server_);
    s.cache = {.dir = dir_, .limit_bytes = limit, .is_validated = is_validated};
    return make(std::move(s));
  }
  static FetchRequest media(std::string url) {
    FetchRequest request = request_for(std::move(url));
    request.is_media = true;
    return request;
  }
  static void submit_media(Fetcher& fetcher, int n, Answers& answers) {
    for (int i = 0; i < n; ++i) fetcher.submit(media(url_of(i)), answers.slot(i));
  }
  static std::string get(Fetcher& fetcher, int i) {
    auto object = fetcher.fetch(media(url_of(i)));
    EXPECT_TRUE(object.ok()) << object.status().to_string();
    return object.ok() ? text(*object) : "";
  }
  static CacheStats stats(const Fetcher& fetcher) { return fetcher.stats().cache.value(); }
  static void wait_until_written(const Fetcher& fetcher, int n) {
    const auto end = std::chrono::steady_clock::now() + 10s;
    while (stats(fetcher).n_written < n && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    ASSERT_GE(stats(fetcher).n_written, n);
  }
  void keep(int n) {
    auto fetcher = cached();
    for (int i = 0; i < n; ++i) get(*fetcher, i);
    wait_until_written(*fetcher, n);
  }

  Store store_;
  LoopbackServer server_;
  std::string dir_;
};

TEST_F(CachedFetcher, TheSecondEpochHasNoBodiesAndTheSameBytes) {
  auto fetcher = cached();
  for (int i = 0; i < 20; ++i) EXPECT_EQ(get(*fetcher, i), object_of(target_of(i)));
  EXPECT_EQ(store_.n_conditional_, 0) << "nothing to ask after";
  wait_until_written(*fetcher, 20);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(get(*fetcher, i), object_of(target_of(i)));
  EXPECT_EQ(store_.n_bodies_, 20);
  EXPECT_EQ(store_.n_unchanged_, 20);
  auto object = fetcher->fetch(media(url_of(1)));
  EXPECT_EQ(object->total_bytes, 1000U);
  EXPECT_EQ(object->etag, "\"/b/1-0\"");
  EXPECT_GT(object->took, Nanos(0));
  EXPECT_EQ(stats(*fetcher).n_hits, 21);
  EXPECT_EQ(stats(*fetcher).n_hit_bytes, 21'000);
  EXPECT_EQ(stats(*fetcher).n_misses, 20);
}

TEST_F(CachedFetcher, AnotherFetcherHitsWhatOneKept) {
  keep(20);
  auto fetcher = cached();
  for (int i = 0; i < 20; ++i) EXPECT_EQ(get(*fetcher, i), object_of(target_of(i)));
  EXPECT_EQ(store_.n_bodies_, 20);
}

TEST_F(CachedFetcher, PlainHttpIsKeptToo) {
  auto fetcher = cached();
  const std::string url = server_.endpoint() + "/b/1?signed=with%20a%20SECRET";
  const std::string expected = object_of("/b/1?signed=with%20a%20SECRET");
  EXPECT_EQ(text(*fetcher->fetch(media(url))), expected);
  wait_until_written(*fetcher, 1);
  EXPECT_EQ(text(*fetcher->fetch(media(url))), expected);
  EXPECT_EQ(store_.n_unchanged_, 1);
}

TEST_F(CachedFetcher, AChangedObjectIsNeverTheOldOne) {
  keep(20);
  auto fetcher = cached();
  store_.version_ = 1;
  for (int i = 0; i < 20; ++i) EXPECT_EQ(get(*fetcher, i), Store::object(target_of(i), 1));
  EXPECT_EQ(store_.n_bodies_, 40);
  EXPECT_EQ(server_.n_requests(), 40) << "the new version came with the same request";
  EXPECT_EQ(stats(*fetcher).n_changed, 20);
  wait_until_written(*fetcher, 20);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(get(*fetcher, i), Store::object(target_of(i), 1));
  EXPECT_EQ(store_.n_bodies_, 40);
}

TEST_F(CachedFetcher, WhoHasRoomForOneGetsTheNewVersionWhenHeAsksAgain) {
  keep(1);
  auto fetcher = cached();
  const auto budget = std::make_shared<MemoryBudget>(1500);
  FetchRequest request = media(url_of(0));
  request.lease_for = [&](std::size_t n) { return budget->try_acquire(n); };
  EXPECT_EQ(text(*fetcher->fetch(request)), object_of(target_of(0)));
  EXPECT_EQ(budget->peak_bytes(), 1000U) << "what is kept is leased too";
  EXPECT_EQ(budget->in_use_bytes(), 0U);
  store_.version_ = 1;
  EXPECT_EQ(fetcher->fetch(request).status().reason(), Reason::kBudget) << "both versions at the same time";
  EXPECT_EQ(text(*fetcher->fetch(request)), Store::object(target_of(0), 1));
}

TEST_F(CachedFetcher, WhoPlannedWithATagGetsThatVersionOrNone) {
  keep(2);
  auto fetcher = cached();
  FetchRequest planned = media(url_of(0));
  planned.if_match = "\"/b/0-0\"";
  EXPECT_EQ(text(*fetcher->fetch(planned)), object_of(target_of(0)));
  EXPECT_EQ(store_.n_unchanged_, 1);
  planned.if_match = "\"another\"";
  planned.url = url_of(1);
  static_cast<void>(fetcher->fetch(planned));  // this store has no If-Match; what counts is who is asked for what
  EXPECT_EQ(store_.n_conditional_, 1);
}

TEST_F(CachedFetcher, TrustedObjectsAreNotAskedAfter) {
  keep(20);
  auto fetcher = cached(/*is_validated=*/false);
  const int before = server_.n_requests();
  for (int i = 0; i < 20; ++i) EXPECT_EQ(get(*fetcher, i), object_of(target_of(i)));
  EXPECT_EQ(server_.n_requests(), before);
  EXPECT_EQ(stats(*fetcher).n_hits, 20);
}

TEST_F(CachedFetcher, PartsComeFromTheWhole) {
  keep(1);
  auto fetcher = cached();
  FetchRequest part = media(url_of(0));
  part.offset = 10;
  part.length = 100;
  auto got = fetcher->fetch(part);
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(text(*got), object_of(target_of(0)).substr(10, 100));
  EXPECT_EQ(got->total_bytes, 1000U);
  EXPECT_EQ(store_.n_unchanged_, 1);
  store_.version_ = 1;
  got = fetcher->fetch(part);
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(text(*got), Store::object(target_of(0), 1).substr(10, 100));
  EXPECT_EQ(stats(*fetcher).n_written, 0) << "a part is not kept";
  part = media(url_of(5));
  part.length = 16384;  // a header read that turned out to be all of it
  EXPECT_EQ(fetcher->fetch(part)->bytes.size(), 1000U);
  wait_until_written(*fetcher, 1);
}

TEST_F(CachedFetcher, AStoreThatIgnoresConditionsIsStillRight) {
  store_.ignores_conditions_ = true;
  keep(5);
  auto fetcher = cached();
  for (int i = 0; i < 5; ++i) EXPECT_EQ(get(*fetcher, i), object_of(target_of(i)));
  store_.version_ = 1;
  for (int i = 0; i < 5; ++i) EXPECT_EQ(get(*fetcher, i), Store::object(target_of(i), 1));
  EXPECT_EQ(stats(*fetcher).n_hits, 0);
}

TEST_F(CachedFetcher, AnAnswerThatNobodyAskedForIsNone) {
  std::atomic<int> n_lies{3};
  LoopbackServer liar([&](const ServerRequest& r) {
    ServerReply reply = serve(r);
    if (n_lies-- > 0) reply.status = 304;
    if (reply.status == 304) reply.body.clear();
    return reply;
  });
  FetchSettings s = settings_for(liar);
  s.cache = {.dir = dir_, .limit_bytes = 1 << 20};
  EXPECT_EQ(get(*make(std::move(s)), 0), object_of(target_of(0)));
  EXPECT_EQ(liar.n_requests(), 4);
}

TEST_F(CachedFetcher, StoresWithTheSameNamesAreToldApart) {
  keep(1);
  LoopbackServer other([](const ServerRequest& r) { return serve(r, 500); });
  FetchSettings s = settings_for(other);
  s.cache = {.dir = dir_, .limit_bytes = 1 << 20, .is_validated = false};
  EXPECT_EQ(get(*make(std::move(s)), 0), object_of(target_of(0), 500));
}

TEST_F(CachedFetcher, DamagedEntriesAreReadFromTheStore) {
  keep(5);
  for (const auto& one : std::filesystem::recursive_directory_iterator(dir_)) {
    if (one.is_regular_file() && one.file_size() > 1000) std::filesystem::resize_file(one.path(), 900);
  }
  auto fetcher = cached(/*is_validated=*/false);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(get(*fetcher, i), object_of(target_of(i)));
  EXPECT_EQ(stats(*fetcher).n_damaged, 5);
  wait_until_written(*fetcher, 5);
}

TEST_F(CachedFetcher, RacesForKeptObjectsAreSafe) {
  keep(50);
  FetchSettings s = settings_for(server_);
  s.cache = {.dir = dir_, .limit_bytes = 1 << 20};
  s.hedge_share = 1;
  s.n_threads = 2;
  auto fetcher = make(std::move(s));
  for (int round = 0; round < 8; ++round) {
    const int before = server_.n_requests();
    server_.hold(round >= 4);  // by then it is known how soon answers come
    Answers answers(50);
    submit_media(*fetcher, 50, answers);
    if (round >= 4) {
      ASSERT_TRUE(server_.wait_for_requests(before + 55)) << "nothing was asked for twice";
      server_.hold(false);
    }
    answers.wait();
    ASSERT_TRUE(answers.each_once());
    for (int i = 0; i < 50; ++i) ASSERT_EQ(text(*answers.at(i)), object_of(target_of(i)));
  }
  EXPECT_EQ(store_.n_bodies_, 50);
  EXPECT_EQ(stats(*fetcher).n_hits, 400);
}

TEST_F(CachedFetcher, StopAnswersWhatIsBeingLookedUp) {
  keep(50);
  for (const bool is_validated : {true, false}) {
    auto fetcher = cached(is_validated);
    server_.hold(true);
    Answers answers(100);  // half of them are not there
    submit_media(*fetcher, 100, answers);
    const auto began = std::chrono::steady_clock::now();
    fetcher->stop();
    EXPECT_LT(std::chrono::steady_clock::now() - began, 1s);
    answers.wait();
    EXPECT_TRUE(answers.each_once());
    server_.hold(false);
  }
}

TEST_F(CachedFetcher, ManifestsAreAlwaysRead) {
  auto fetcher = cached(/*is_validated=*/false);
  for (const int version : {0, 1}) {
    store_.version_ = version;
    EXPECT_EQ(text(*fetcher->fetch(request_for(url_of(0)))), Store::object(target_of(0), version));
  }
  EXPECT_EQ(stats(*fetcher).n_misses, 0);
}

TEST_F(CachedFetcher, LocalFilesAreNotCopied) {
  auto fetcher = cached();
  const std::string path = dir_ + "/local.png";
  std::filesystem::copy_file("/proc/self/cmdline", path);
  ASSERT_TRUE(fetcher->fetch(media(path)).ok());
  ASSERT_TRUE(fetcher->fetch(media("data:image/png;base64,AAAA")).ok());
  EXPECT_EQ(stats(*fetcher).n_misses, 0);
}

TEST_F(CachedFetcher, IsOffUnlessAskedFor) {
  auto fetcher = make(settings_for(server_));
  get(*fetcher, 1);
  get(*fetcher, 1);
  EXPECT_EQ(store_.n_bodies_, 2);
  EXPECT_FALSE(fetcher->stats().cache);
  FetchSettings s = settings_for(server_);
  s.cache.dir = dir_;
  EXPECT_EQ(Fetcher::create(std::move(s)).status().reason(), Reason::kSettings) << "without a limit";
}

}  // namespace
}  // namespace stoker

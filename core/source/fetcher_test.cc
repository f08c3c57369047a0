#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "source/memory/memory_source.h"
#include "source/source.h"
#include "source/testing/fetch_fixture.h"
#include "source/testing/loopback_server.h"

namespace stoker {
namespace {

using namespace std::chrono_literals;
using namespace stoker::testing;
using ::testing::HasSubstr;
using ::testing::Not;
using Then = ServerReply::Then;

TEST(Fetcher, ReadsWholeObjectsAndParts) {
  LoopbackServer server([](const ServerRequest& r) { return serve(r); });
  auto fetcher = make(settings_for(server));
  const std::string whole = object_of("/b/k.png");
  auto object = fetcher->fetch(request_for("s3://b/k.png"));
  ASSERT_TRUE(object.ok()) << object.status().to_string();
  EXPECT_EQ(text(*object), whole);
  EXPECT_EQ(object->total_bytes, 1000U);
  EXPECT_EQ(object->etag, "\"tag\"");
  EXPECT_GT(object->first_byte, 0ns);
  EXPECT_GE(object->took, object->first_byte);
  struct Case {
    std::uint64_t offset;
    std::optional<std::uint64_t> length;
  };
  for (const Case& c :
       std::vector<Case>{{0, 10}, {990, 100}, {5, std::nullopt}, {1000, 5}, {2000, std::nullopt}, {0, 0}, {999, 1}}) {
    FetchRequest request = request_for("s3://b/k.png");
    request.offset = c.offset;
    request.length = c.length;
    auto part = fetcher->fetch(request);
    ASSERT_TRUE(part.ok()) << part.status().to_string() << " at " << c.offset;
    const std::size_t begin = std::min<std::uint64_t>(c.offset, 1000);
    EXPECT_EQ(text(*part), whole.substr(begin, c.length.value_or(1000)));
    EXPECT_EQ(part->total_bytes, 1000U);
  }
}

TEST(Fetcher, AnEmptyObjectIsAnObject) {
  LoopbackServer server([](const ServerRequest&) { return ServerReply{}; });
  auto fetcher = make(settings_for(server));
  auto object = fetcher->fetch(request_for("s3://b/empty"));
  ASSERT_TRUE(object.ok()) << object.status().to_string();
  EXPECT_EQ(object->bytes.size(), 0U);
  EXPECT_EQ(object->total_bytes, 0U);
}

// NET-01
TEST(Fetcher, ThrottledRequestsAllComeThroughAndTheLimitShrinks) {
  std::mutex mu;
  std::map<std::string, int> seen;
  LoopbackServer server([&](const ServerRequest& r) {
    const std::lock_guard lock(mu);
    return ++seen[r.target] <= 3 ? error_reply(503, "SlowDown") : serve(r);
  });
  auto settings = settings_for(server);
  settings.concurrency = 64;
  auto fetcher = make(settings);
  Answers answers(256);
  submit_all(*fetcher, 256, answers);
  answers.wait();
  EXPECT_EQ(answers.n_ok(), 256);
  EXPECT_TRUE(answers.each_once());
  const FetchStats stats = fetcher->stats();
  EXPECT_EQ(stats.n_throttled, 3 * 256);
  EXPECT_EQ(stats.n_retries, 3 * 256);
  EXPECT_EQ(stats.failed_tries, (std::map<Reason, std::int64_t>{{Reason::kFetchThrottled, 3 * 256}}));
  EXPECT_EQ(stats.n_in_flight + stats.n_waiting + stats.n_retrying, 0);
  EXPECT_LT(stats.limit, 64);
  for (int round = 0; round < 24; ++round) {  // one after another: together they would be shared
    Answers more(256);
    submit_all(*fetcher, 256, more);
    more.wait();
  }
  EXPECT_EQ(fetcher->stats().limit, 64) << "does not recover";
}

TEST(Fetcher, ThrottlingWithoutEndBecomesAnOutageThatNamesItsCause) {
  LoopbackServer server([](const ServerRequest&) { return error_reply(503, "SlowDown"); });
  auto settings = settings_for(server);
  settings.outage_limit_s = 0.2;
  auto fetcher = make(settings);
  auto object = fetcher->fetch(request_for("s3://b/k?versionId=1"));
  EXPECT_EQ(object.status().reason(), Reason::kOutage);
  EXPECT_THAT(object.status().message(), HasSubstr("FETCH_THROTTLED"));
  EXPECT_THAT(object.status().message(), HasSubstr("\"s3://b/k?versionId=1\""));  // literal: it is the key
}

TEST(Fetcher, OnlyThePrefixThatThrottlesIsAskedLess) {
  LoopbackServer server([&](const ServerRequest& r) {
    return r.target.starts_with("/b/busy/") ? error_reply(503, "SlowDown") : serve(r);
  });
  auto settings = settings_for(server);
  settings.concurrency = 32;
  auto fetcher = make(settings);
  Lines lines;
  std::stop_source enough;
  Answers busy(64);
  for (int i = 0; i < 64; ++i) {
    FetchRequest request = request_for(fmt::format("s3://b/busy/{}", i));
    request.stop = enough.get_token();
    fetcher->submit(std::move(request), busy.slot(i));
  }
  ASSERT_TRUE(server.wait_for_requests(300));  // they are refused for ever
  Answers free(2000);
  for (int i = 0; i < 2000; ++i) fetcher->submit(request_for(fmt::format("s3://b/free/{}", i), 1), free.slot(i));
  free.wait();
  EXPECT_EQ(free.n_ok(), 2000) << "though all of the others stand before them in the plan";
  EXPECT_THAT(lines.all(), HasSubstr("\"s3://b/busy/\" asks to slow down"));
  EXPECT_THAT(lines.all(), Not(HasSubstr("s3://b/free")));
  enough.request_stop();
  fetcher->stop();
  busy.wait();
}

TEST(Fetcher, MoreAreInFlightWhileThatBringsMore) {
  // Time passes with the answers: a second for as many as may be in flight, so that twice as many bring twice as much.
  struct ClockOfAnswers final : Clock {
    std::atomic<std::int64_t> passed_ns{0};
    Nanos now() const override { return Clock::real().now() + Nanos(passed_ns.load()); }
  } clock;
  std::atomic<std::int64_t> limit{32};
  LoopbackServer server([&](const ServerRequest& r) {
    clock.passed_ns += 1'000'000'000 / limit;
    return serve(r);
  });
  auto settings = settings_for(server);
  settings.concurrency = 32;
  settings.max_concurrency = 256;
  settings.timeouts.first_byte = settings.timeouts.stall = std::chrono::hours(10);
  auto fetcher = Fetcher::create(std::move(settings), clock);
  ASSERT_TRUE(fetcher.ok());
  Answers answers(3000);
  for (int i = 0; i < 3000; ++i) {
    (*fetcher)->submit(request_for(url_of(i)), [&, slot = answers.slot(i)](Result<FetchedObject> result) {
      limit = (*fetcher)->stats().limit;
      slot(std::move(result));
    });
  }
  answers.wait();
  EXPECT_EQ((*fetcher)->stats().limit, 256);
  EXPECT_LE(server.n_open_peak(), 256);
}

TEST(Fetcher, WhatIsWantedTwiceAtTheSameTimeIsAskedForOnce) {
  LoopbackServer server([](const ServerRequest& r) { return serve(r); });
  auto fetcher = make(settings_for(server));
  server.hold(true);
  Answers answers(60);
  for (int i = 0; i < 40; ++i) fetcher->submit(request_for(url_of(i % 4), 5), answers.slot(i));
  for (int i = 40; i < 60; ++i) {  // other bytes of the same objects
    FetchRequest part = request_for(url_of(i % 4), 5);
    part.offset = static_cast<std::uint64_t>(i % 2);
    part.length = 10;
    fetcher->submit(std::move(part), answers.slot(i));
  }
  ASSERT_TRUE(server.wait_for_requests(8));
  server.hold(false);
  answers.wait();
  EXPECT_EQ(server.n_requests(), 8);
  EXPECT_EQ(answers.n_ok(), 60);
  EXPECT_TRUE(answers.each_once());
  for (int i = 0; i < 60; ++i) {
    const std::string whole = object_of(target_of(i % 4));
    EXPECT_EQ(text(*answers.at(i)), i < 40 ? whole : whole.substr(static_cast<std::size_t>(i % 2), 10));
    EXPECT_EQ(answers.at(i)->etag, "\"tag\"");
    EXPECT_EQ(answers.at(i)->total_bytes, 1000U);
  }
  const FetchStats stats = fetcher->stats();
  EXPECT_EQ(stats.n_submitted, 60);
  EXPECT_EQ(stats.n_succeeded, 60);
  EXPECT_EQ(stats.n_shared, 52);
  EXPECT_TRUE(fetcher->fetch(request_for(url_of(0))).ok());
  EXPECT_EQ(server.n_requests(), 9) << "later is not the same time";
}

TEST(Fetcher, WhoIsStoppedDoesNotEndItForThoseWhoJoined) {
  LoopbackServer server([](const ServerRequest& r) { return serve(r); });
  auto fetcher = make(settings_for(server));
  server.hold(true);
  std::stop_source first;
  std::stop_source both;
  Answers answers(4);
  const auto submit = [&](int i, const char* url, const std::stop_source& stop) {
    FetchRequest request = request_for(url);
    request.stop = stop.get_token();
    fetcher->submit(std::move(request), answers.slot(i));
  };
  submit(0, "s3://b/wanted", first);
  submit(1, "s3://b/wanted", std::stop_source());
  submit(2, "s3://b/unwanted", both);
  submit(3, "s3://b/unwanted", both);
  ASSERT_TRUE(server.wait_for_requests(2));
  first.request_stop();
  both.request_stop();
  while (fetcher->stats().n_failed < 2) std::this_thread::yield();
  server.hold(false);
  answers.wait();
  EXPECT_TRUE(answers.at(1).ok());
  EXPECT_EQ(answers.at(2).status().reason(), Reason::kStopped);
  EXPECT_EQ(answers.at(3).status().reason(), Reason::kStopped);
  EXPECT_TRUE(answers.each_once());
}

TEST(Fetcher, WhatIsNeededEarlierDoesNotWaitForTheTurnOfWhatIsNeededLater) {
  LoopbackServer server([](const ServerRequest& r) { return serve(r); });
  auto settings = settings_for(server);
  settings.concurrency = 1;
  auto fetcher = make(settings);
  server.hold(true);
  Answers answers(4);
  fetcher->submit(request_for("s3://b/blocker"), answers.slot(0));
  ASSERT_TRUE(server.wait_for_requests(1));
  fetcher->submit(request_for("s3://b/same", 9), answers.slot(1));
  fetcher->submit(request_for("s3://b/between", 5), answers.slot(2));
  fetcher->submit(request_for("s3://b/same", 1), answers.slot(3));
  server.hold(false);
  answers.wait();
  EXPECT_EQ(server.targets(), (std::vector<std::string>{"/b/blocker", "/b/same", "/b/between", "/b/same"}));
  EXPECT_TRUE(answers.each_once());
}

TEST(Fetcher, EveryAnswerIsLeasedBeforeItHasMemory) {
  LoopbackServer server([](const ServerRequest& r) { return serve(r); });
  auto fetcher = make(settings_for(server));
  const auto budget = std::make_shared<MemoryBudget>(2500);
  const auto leased = [&](std::size_t n) { return budget->try_acquire(n); };
  FetchRequest request = request_for("s3://b/leased");
  request.lease_for = leased;
  auto first = fetcher->fetch(request);
  auto second = fetcher->fetch(request);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(budget->in_use_bytes(), 2000U);
  EXPECT_EQ(fetcher->fetch(request).status().reason(), Reason::kBudget);
  first = Status(Reason::kStopped, "let go");
  EXPECT_EQ(budget->in_use_bytes(), 1000U);
  EXPECT_TRUE(fetcher->fetch(request).ok());
  EXPECT_LE(budget->peak_bytes(), 2500U);
}

TEST(Fetcher, WhoHasNoRoomDoesNotEndItForThoseWhoJoined) {
  LoopbackServer server([](const ServerRequest& r) { return serve(r); });
  auto fetcher = make(settings_for(server));
  server.hold(true);
  Answers answers(3);
  FetchRequest poor = request_for("s3://b/same");
  poor.lease_for = [](std::size_t) { return std::optional<Lease>(); };
  fetcher->submit(poor, answers.slot(0));
  fetcher->submit(request_for("s3://b/same"), answers.slot(1));
  fetcher->submit(poor, answers.slot(2));
  ASSERT_TRUE(server.wait_for_requests(1));
  server.hold(false);
  answers.wait();
  EXPECT_EQ(answers.at(0).status().reason(), Reason::kBudget);
  EXPECT_TRUE(answers.at(1).ok());
  EXPECT_EQ(answers.at(2).status().reason(), Reason::kBudget);
  EXPECT_TRUE(answers.each_once());
}

TEST(Fetcher, AFailureIsToldToAllWhoWaitForIt) {
  LoopbackServer server([](const ServerRequest&) { return error_reply(404, "NoSuchKey"); });
  auto fetcher = make(settings_for(server));
  server.hold(true);
  Answers answers(10);
  for (int i = 0; i < 10; ++i) fetcher->submit(request_for("s3://b/gone"), answers.slot(i));
  ASSERT_TRUE(server.wait_for_requests(1));
  server.hold(false);
  answers.wait();
  for (int i = 0; i < 10; ++i) EXPECT_EQ(answers.at(i).status().reason(), Reason::kMediaNotFound);
  EXPECT_EQ(server.n_requests(), 1);
}

// NET-02
TEST(Fetcher, ReadsTheCredentialsFileAgainWhenKeysExpire) {
  const std::string path = ::testing::TempDir() + "stoker_credentials_" + std::to_string(getpid());
  const auto write_keys = [&](const std::string& id) {
    std::ofstream(path, std::ios::trunc) << "[default]\naws_access_key_id = " << id << "\naws_secret_access_key = s\n";
  };
  write_keys("OLDKEY");
  std::atomic<bool> is_expired{false};
  LoopbackServer server([&](const ServerRequest& r) {
    const std::string& authorization = r.headers.at("authorization");
    if (is_expired && authorization.find("OLDKEY") != std::string::npos) return error_reply(403, "ExpiredToken");
    return serve(r);
  });
  auto settings = settings_for(server);
  settings.storage.access_key_id = settings.storage.secret_access_key = settings.storage.session_token = "";
  settings.storage.environment = [&](const char* name) -> std::optional<std::string> {
    if (std::string_view(name) == "AWS_SHARED_CREDENTIALS_FILE") return path;
    return std::nullopt;
  };
  settings.outage_limit_s = 0.1;
  auto fetcher = make(settings);
  ASSERT_TRUE(fetcher->fetch(request_for("s3://b/1")).ok());
  is_expired = true;
  auto dead = fetcher->fetch(request_for("s3://b/2"));
  EXPECT_EQ(dead.status().reason(), Reason::kOutage) << "worked before, so it waits for new keys";
  EXPECT_THAT(dead.status().message(), HasSubstr("FETCH_CREDENTIALS"));
  EXPECT_THAT(dead.status().message(), HasSubstr("profile \"default\""));
  EXPECT_THAT(dead.status().message(), Not(HasSubstr("OLDKEY")));
  write_keys("NEWKEY");
  Answers answers(50);
  submit_all(*fetcher, 50, answers);
  answers.wait();
  EXPECT_EQ(answers.n_ok(), 50);
  std::filesystem::remove(path);
}

TEST(Fetcher, WrongCredentialsFailAtOnceAndSaySoWithoutKeys) {
  const Lines lines;
  LoopbackServer server([](const ServerRequest& r) {
    ServerReply reply = error_reply(403, "InvalidAccessKeyId");
    reply.body += r.headers.at("authorization") + kSecret;  // a store that echoes
    return reply;
  });
  auto fetcher = make(settings_for(server));
  const auto begin = std::chrono::steady_clock::now();
  auto object = fetcher->fetch(request_for("s3://b/k"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 2s);
  EXPECT_EQ(object.status().reason(), Reason::kFetchCredentials) << object.status().to_string();
  EXPECT_THAT(object.status().message(), HasSubstr("InvalidAccessKeyId"));
  EXPECT_THAT(object.status().message(), HasSubstr("the settings"));
  for (const char* secret : {"TOPSECRET", "AKIDEXAMPLE", "SESSION"}) {
    EXPECT_THAT(object.status().message(), Not(HasSubstr(secret)));
    EXPECT_THAT(lines.all(), Not(HasSubstr(secret)));
  }
}

TEST(Fetcher, NoCredentialsAtAllIsSaidAtOnce) {
  LoopbackServer server([](const ServerRequest& r) { return serve(r); });
  auto settings = settings_for(server);
  settings.storage.access_key_id = settings.storage.secret_access_key = settings.storage.session_token = "";
  auto fetcher = make(settings);
  EXPECT_EQ(fetcher->fetch(request_for("s3://b/k")).status().reason(), Reason::kFetchCredentials);
  EXPECT_EQ(server.n_requests(), 0);
  settings.storage.anonymous = true;
  EXPECT_TRUE(make(settings)->fetch(request_for("s3://b/k")).ok());
}

// NET-05
TEST(Fetcher, EndpointPrecedence) {
  LoopbackServer server([](const ServerRequest& r) { return serve(r); });
  auto settings = settings_for(server);
  settings.storage.endpoint = "";
  std::map<std::string, std::string> env = {{"AWS_ENDPOINT_URL", "http://127.0.0.1:9"},
                                            {"AWS_ENDPOINT_URL_S3", server.endpoint()}};
  settings.storage.environment = [&](const char* name) {
    return env.contains(name) ? std::optional(env[name]) : std::nullopt;
  };
  EXPECT_TRUE(make(settings)->fetch(request_for("s3://b/k")).ok());
  env = {{"AWS_ENDPOINT_URL", server.endpoint()}};
  EXPECT_TRUE(make(settings)->fetch(request_for("s3://b/k")).ok());
  env = {{"AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9"}};
  settings.storage.endpoint = server.endpoint();
  EXPECT_TRUE(make(settings)->fetch(request_for("s3://b/k")).ok());
  settings.storage.endpoint = "minio:9000";
  EXPECT_EQ(Fetcher::create(settings).status().reason(), Reason::kSettings);
}

// NET-08, NET-09
TEST(Fetcher, KeysGoOverTheWireEncodedOnceAndUntouched) {
  LoopbackServer server([](const ServerRequest& r) { return serve(r); });
  auto fetcher = make(settings_for(server));
  const std::vector<std::pair<std::string, std::string>> keys = {{"C++ notes.png", "C%2B%2B%20notes.png"},
                                                                 {"10%2B2.png", "10%252B2.png"},
                                                                 {"a b.png", "a%20b.png"},
                                                                 {"a=b&c.png", "a%3Db%26c.png"},
                                                                 {"a?b#c.png", "a%3Fb%23c.png"},
                                                                 {"d//x.png", "d//x.png"},
                                                                 {"/x.png", "/x.png"},
                                                                 {"d/./x.png", "d/./x.png"},
                                                                 {"../x", "../x"},
                                                                 {"a/../b", "a/../b"},
                                                                 {"..", ".."},
                                                                 {"\xE5\x9B\xBE.png", "%E5%9B%BE.png"},
                                                                 {"a:b@c", "a%3Ab%40c"},
                                                                 {"x/", "x/"},
                                                                 {"100%.png", "100%25.png"}};
  for (const auto& [key, encoded] : keys) {
    auto object = fetcher->fetch(request_for("s3://b/" + key));
    ASSERT_TRUE(object.ok()) << object.status().to_string();
    EXPECT_EQ(text(*object), object_of("/b/" + encoded)) << key;
  }
}

TEST(Fetcher, ErrorsThatArePermanent) {
  LoopbackServer server([](const ServerRequest& r) {
    if (r.target == "/b/gone") return error_reply(410, "Gone");
    if (r.target == "/b/changed") return error_reply(412, "PreconditionFailed");
    if (r.target == "/nobucket/k") return error_reply(404, "NoSuchBucket");
    if (r.target == "/b/ok") return serve(r);
    if (r.target == "/b/denied") return error_reply(403, "AccessDenied");
    return error_reply(404, "NoSuchKey");
  });
  auto settings = settings_for(server);
  settings.outage_limit_s = 0.05;
  auto fetcher = make(settings);
  EXPECT_EQ(fetcher->fetch(request_for("s3://b/denied")).status().reason(), Reason::kFetchDenied);
  auto missing = fetcher->fetch(request_for("s3://b/no such.png"));
  EXPECT_EQ(missing.status().reason(), Reason::kMediaNotFound);
  EXPECT_THAT(missing.status().message(), HasSubstr("\"s3://b/no such.png\""));
  EXPECT_EQ(fetcher->fetch(request_for("s3://b/gone")).status().reason(), Reason::kMediaNotFound);
  EXPECT_EQ(fetcher->fetch(request_for("s3://b/changed")).status().reason(), Reason::kMediaChanged);
  EXPECT_EQ(fetcher->fetch(request_for("s3://nobucket/k")).status().reason(), Reason::kManifest);
  EXPECT_EQ(fetcher->fetch(request_for("gs://b/k")).status().reason(), Reason::kMediaScheme);
  EXPECT_EQ(fetcher->stats().n_retries, 0);
  EXPECT_TRUE(fetcher->fetch(request_for("s3://b/ok")).ok());
  EXPECT_THAT(fetcher->fetch(request_for("s3://b/denied")).status().message(), HasSubstr("FETCH_DENIED"));
}

TEST(Fetcher, PlainHttpFollowsRedirectsAndHidesQueries) {
  LoopbackServer server([](const ServerRequest& r) {
    if (r.target == "/missing?token=abc") return error_reply(404, "");
    if (r.target == "/from") {
      ServerReply reply;
      reply.status = 302;
      reply.headers = {{"Location", "/to%20here"}};
      return reply;
    }
    if (r.target == "/loop") {
      ServerReply reply;
      reply.status = 302;
      reply.headers = {{"Location", "/loop"}};
      return reply;
    }
    EXPECT_FALSE(r.headers.contains("authorization"));
    return serve(r);
  });
  auto fetcher = make(settings_for(server));
  auto object = fetcher->fetch(request_for(server.endpoint() + "/from"));
  ASSERT_TRUE(object.ok()) << object.status().to_string();
  EXPECT_EQ(text(*object), object_of("/to%20here"));
  auto missing = fetcher->fetch(request_for(server.endpoint() + "/missing?token=abc"));
  EXPECT_EQ(missing.status().reason(), Reason::kMediaNotFound);
  EXPECT_THAT(missing.status().message(), Not(HasSubstr("abc")));
  EXPECT_TRUE(fetcher->fetch(request_for(server.endpoint() + "/a b.png")).ok());
}

TEST(Fetcher, StopInTheMiddleOfAThousandStalledRequests) {
  LoopbackServer server([](const ServerRequest& r) {
    ServerReply reply = serve(r);
    if (r.target == "/b/first") return reply;
    reply.stalls_first = r.number % 2 == 0;
    reply.n_send = 500;
    reply.then = Then::kStall;
    return reply;
  });
  auto settings = settings_for(server);
  settings.concurrency = 1000;
  settings.n_threads = 2;
  auto fetcher = make(settings);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(fetcher->fetch(request_for("s3://b/first")).ok());
  const int n_at_once = static_cast<int>(fetcher->stats().limit);
  const int n = 1500;
  Answers answers(n);
  submit_all(*fetcher, n, answers);
  ASSERT_TRUE(server.wait_for_requests(std::min(500, n_at_once)));
  const auto begin = std::chrono::steady_clock::now();
  fetcher->stop();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 1s);
  answers.wait();
  EXPECT_TRUE(answers.each_once());
  EXPECT_EQ(answers.n_failed(), n);
  for (int i = 0; i < n; ++i) EXPECT_EQ(answers.at(i).status().reason(), Reason::kStopped);
  EXPECT_EQ(fetcher->fetch(request_for("s3://b/late")).status().reason(), Reason::kStopped);
  fetcher->stop();
}

TEST(Fetcher, StartsInPlanOrderAndKeepsTheLimit) {
  LoopbackServer server([](const ServerRequest& r) { return serve(r); });
  auto settings = settings_for(server);
  settings.concurrency = 1;
  auto fetcher = make(settings);
  server.hold(true);
  Answers answers(101);
  fetcher->submit(request_for("s3://b/blocker"), answers.slot(100));
  ASSERT_TRUE(server.wait_for_requests(1));
  for (int i = 0; i < 100; ++i) {
    const int place = i * 37 % 100;
    fetcher->submit(request_for(url_of(place), static_cast<std::uint64_t>(place)), answers.slot(place));
  }
  server.hold(false);
  answers.wait();
  std::vector<std::string> expected = {"/b/blocker"};
  for (int i = 0; i < 100; ++i) expected.push_back(target_of(i));
  EXPECT_EQ(server.targets(), expected);
  EXPECT_EQ(server.n_open_peak(), 1);
}

TEST(Fetcher, TellsWhichRequestIsFirstInThePlanOfThoseWithoutAnAnswer) {
  LoopbackServer server([](const ServerRequest& r) { return serve(r); });
  auto settings = settings_for(server);
  settings.concurrency = 1;
  auto fetcher = make(settings);
  EXPECT_FALSE(fetcher->first_pending());
  server.hold(true);
  Answers answers(4);
  fetcher->submit(request_for("s3://b/on-the-wire", 7), answers.slot(0));
  ASSERT_TRUE(server.wait_for_requests(1));
  EXPECT_EQ(fetcher->first_pending()->url, "s3://b/on-the-wire");
  fetcher->submit(request_for(fmt::format("http://127.0.0.1:{}/signed.png?secret=1", server.port()), 3),
                  answers.slot(1));
  fetcher->submit(request_for("s3://b/of-another-prefix", 5), answers.slot(2));
  fetcher->submit(request_for("s3://b/on-the-wire", 9), answers.slot(3));  // shares the first one's answer
  const auto first = fetcher->first_pending();
  EXPECT_EQ(first->url, fmt::format("http://127.0.0.1:{}/signed.png?...", server.port()));
  EXPECT_EQ(first->n_pending, 4U);
  EXPECT_LE(first->since, Clock::real().now());
  server.hold(false);
  answers.wait();
  EXPECT_FALSE(fetcher->first_pending());
}

TEST(Fetcher, ConcurrencyIsKeptAndMayChange) {
  LoopbackServer server([](const ServerRequest& r) { return serve(r); });
  auto settings = settings_for(server);
  settings.concurrency = 8;
  settings.n_threads = 2;
  auto fetcher = make(settings);
  Answers some(500);
  submit_all(*fetcher, 500, some);
  some.wait();
  EXPECT_LE(server.n_open_peak(), 8);
  server.hold(true);
  fetcher->set_concurrency(20);
  Answers more(50);
  submit_all(*fetcher, 50, more);
  ASSERT_TRUE(server.wait_for_requests(520));
  EXPECT_EQ(fetcher->stats().n_in_flight, 20);
  EXPECT_EQ(fetcher->stats().n_waiting, 30);
  server.hold(false);
  more.wait();
  EXPECT_EQ(server.n_open_peak(), 20);
}

TEST(Fetcher, AStopTokenTakesOneRequestOffTheWire) {
  LoopbackServer server([](const ServerRequest& r) {
    ServerReply reply = serve(r);
    reply.stalls_first = r.target == "/b/never";
    return reply;
  });
  auto fetcher = make(settings_for(server));
  std::stop_source stop;
  FetchRequest request = request_for("s3://b/never");
  request.stop = stop.get_token();
  Answers answers(1);
  fetcher->submit(request, answers.slot(0));
  ASSERT_TRUE(server.wait_for_requests(1));
  stop.request_stop();
  answers.wait();
  EXPECT_EQ(answers.at(0).status().reason(), Reason::kStopped);
  std::stop_source caller;
  caller.request_stop();
  EXPECT_EQ(fetcher->fetch(request_for("s3://b/never"), caller.get_token()).status().reason(), Reason::kStopped);
  EXPECT_TRUE(fetcher->fetch(request_for("s3://b/other")).ok());
}

// Every two hundredth object is not answered the first time. Only a second request helps: all timeouts are far away.
TEST(Fetcher, LateAnswersAreAskedForASecondTimeAndTheFirstAnswerCounts) {
  constexpr int kObjects = 3000;
  std::set<std::string> seen;  // the server's thread only
  LoopbackServer server([&](const ServerRequest& request) {
    ServerReply reply = serve(request);
    const bool is_first = seen.insert(request.target).second;
    // Not the first ones, when nothing is known yet, nor the last, behind which no answer would add to the allowance.
    reply.stalls_first = is_first && seen.size() > 300 && seen.size() < 2500 && seen.size() % 200 == 0;
    return reply;
  });
  FetchSettings settings = settings_for(server);
  settings.hedge_share = 0.05;
  settings.timeouts = {120s, 120s, 120s, 0s};
  settings.concurrency = 32;
  const auto fetcher = make(settings);
  Answers answers(kObjects);
  submit_all(*fetcher, kObjects, answers);
  answers.wait();
  EXPECT_TRUE(answers.each_once());
  for (int i = 0; i < kObjects; ++i) {
    ASSERT_TRUE(answers.at(i).ok()) << answers.at(i).status().to_string();
    EXPECT_EQ(text(*answers.at(i)), object_of(target_of(i)));
  }
  const FetchStats stats = fetcher->stats();
  EXPECT_EQ(stats.n_succeeded, kObjects);
  EXPECT_EQ(stats.n_failed, 0);
  EXPECT_GE(stats.n_hedges_won, 11);
  EXPECT_LE(stats.n_hedges, kObjects / 20);
  EXPECT_LE(server.n_requests(), kObjects + kObjects / 20);
}

TEST(Fetcher, OneAtATimeLeavesNoRoomForASecondRequest) {
  constexpr int kObjects = 300;
  std::set<std::string> seen;
  LoopbackServer server([&](const ServerRequest& request) {
    ServerReply reply = serve(request);
    reply.stalls_first = seen.insert(request.target).second && seen.size() == 250;
    return reply;
  });
  FetchSettings settings = settings_for(server);
  settings.hedge_share = 0.02;
  settings.concurrency = 1;
  settings.timeouts.first_byte = 300ms;
  const auto fetcher = make(settings);
  Answers answers(kObjects);
  submit_all(*fetcher, kObjects, answers);
  answers.wait();
  EXPECT_EQ(fetcher->stats().n_succeeded, kObjects);
  EXPECT_EQ(fetcher->stats().n_retries, 1);
  EXPECT_EQ(fetcher->stats().n_hedges, 0);
}

TEST(Fetcher, AFailureOfOneOfTwoRequestsLeavesTheOtherToAnswer) {
  constexpr int kObjects = 2000;
  std::map<std::string, int> n_seen;
  LoopbackServer server([&](const ServerRequest& request) {
    ServerReply reply = serve(request);
    const int time = ++n_seen[request.target];
    if (n_seen.size() > 300 && std::hash<std::string>()(request.target) % 100 == 0) {
      if (time == 1) reply.stalls_first = true;
      if (time == 2) reply = error_reply(500, "InternalError");  // the second one fails, alone, and is not tried again
    }
    return reply;
  });
  FetchSettings settings = settings_for(server);
  settings.hedge_share = 0.02;
  settings.timeouts = {120s, 1500ms, 120s, 0s};  // then the first fails too, and is tried again
  settings.concurrency = 32;
  const auto fetcher = make(settings);
  Answers answers(kObjects);
  submit_all(*fetcher, kObjects, answers);
  answers.wait();
  EXPECT_TRUE(answers.each_once());
  for (int i = 0; i < kObjects; ++i) ASSERT_TRUE(answers.at(i).ok()) << answers.at(i).status().to_string();
  EXPECT_EQ(fetcher->stats().n_succeeded, kObjects);
  EXPECT_GT(fetcher->stats().n_hedges, 0);
}

TEST(Fetcher, LocalFiles) {
  const std::filesystem::path folder =
      std::filesystem::path(::testing::TempDir()) / ("stoker_files_" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  const std::string content = object_of("file", 100'000);
  for (const char* name : {"a b.png",
                           "\xE5\x9B\xBE"
                           "1.png",
                           "a#1.png", "100%.png", "c++.png"}) {
    std::ofstream(folder / name, std::ios::binary) << content;
  }
  std::ofstream(folder / "empty").flush();
  FetchSettings settings;
  settings.outage_limit_s = 0.05;
  settings.retry = {1ms, 20ms};
  auto fetcher = make(settings);
  for (const char* name : {"a b.png",
                           "\xE5\x9B\xBE"
                           "1.png",
                           "a#1.png", "100%.png", "c++.png"}) {
    auto object = fetcher->fetch(request_for((folder / name).string()));
    ASSERT_TRUE(object.ok()) << object.status().to_string();
    EXPECT_EQ(text(*object), content);
  }
  EXPECT_TRUE(fetcher->fetch(request_for("file://" + folder.string() + "/a%20b.png")).ok());
  FetchRequest part = request_for((folder / "a b.png").string());
  part.offset = 99'990;
  part.length = 100;
  auto tail = fetcher->fetch(part);
  ASSERT_TRUE(tail.ok());
  EXPECT_EQ(text(*tail), content.substr(99'990));
  EXPECT_EQ(tail->total_bytes, 100'000U);
  part.if_match = "\"other\"";
  EXPECT_EQ(fetcher->fetch(part).status().reason(), Reason::kMediaChanged);
  part.if_match = tail->etag;
  EXPECT_TRUE(fetcher->fetch(part).ok());
  EXPECT_EQ(fetcher->fetch(request_for((folder / "empty").string()))->bytes.size(), 0U);
  EXPECT_EQ(fetcher->fetch(request_for((folder / "none").string())).status().reason(), Reason::kMediaNotFound);
  EXPECT_EQ(fetcher->fetch(request_for(folder.string())).status().reason(), Reason::kMediaNotFound);
  EXPECT_EQ(fetcher->fetch(request_for(folder.string() + std::string("/a\0b", 4))).status().reason(),
            Reason::kMediaNotFound);
  std::filesystem::remove_all(folder);
}

TEST(Fetcher, Memory) {
  auto objects = std::make_shared<MemoryObjects>();
  objects->put("k", "hello");
  FetchSettings settings;
  settings.storage.memory = objects;
  auto fetcher = make(settings);
  EXPECT_EQ(text(*fetcher->fetch(request_for("mem://k"))), "hello");
  EXPECT_EQ(fetcher->fetch(request_for("mem://none")).status().reason(), Reason::kMediaNotFound);
}

TEST(Fetcher, SettingsOutOfRange) {
  FetchSettings settings;
  settings.concurrency = 0;
  EXPECT_EQ(Fetcher::create(settings).status().reason(), Reason::kSettings);
  settings = {};
  settings.storage.access_key_id = "only half";
  EXPECT_EQ(Fetcher::create(settings).status().reason(), Reason::kSettings);
}

TEST(Download, MirrorsInPartsAndNoticesAChange) {
  const std::string path = ::testing::TempDir() + "stoker_mirror_" + std::to_string(getpid());
  constexpr std::size_t kSize = 40'000'003;
  const std::string whole = object_of("big", kSize);
  std::atomic<bool> changes{false};
  LoopbackServer server([&](const ServerRequest& r) {
    ServerReply reply;
    const std::string& range = r.headers.at("range");
    const std::size_t dash = range.find('-');
    const std::size_t first = std::stoul(range.substr(6, dash - 6));
    const std::size_t end = std::min(kSize, std::stoul(range.substr(dash + 1)) + 1);
    if (first > 0 && changes) return error_reply(412, "PreconditionFailed");
    EXPECT_EQ(r.headers.contains("if-match"), first > 0);
    reply.status = 206;
    reply.body = whole.substr(first, end - first);
    reply.headers = {{"ETag", "\"v1\""}, {"Content-Range", fmt::format("bytes {}-{}/{}", first, end - 1, kSize)}};
    return reply;
  });
  auto fetcher = make(settings_for(server));
  std::uint64_t last = 0;
  const Status status = download(*fetcher, "s3://b/big", path, {}, [&](std::uint64_t n, std::uint64_t total) {
    EXPECT_GE(n, last);
    EXPECT_EQ(total, kSize);
    last = n;
  });
  ASSERT_TRUE(status.ok()) << status.to_string();
  EXPECT_EQ(last, kSize);
  std::string mirrored(kSize + 1, '\0');
  std::ifstream in(path, std::ios::binary);
  in.read(mirrored.data(), static_cast<std::streamsize>(mirrored.size()));
  mirrored.resize(static_cast<std::size_t>(in.gcount()));
  EXPECT_TRUE(mirrored == whole);
  std::filesystem::remove(path);
  changes = true;
  EXPECT_EQ(download(*fetcher, "s3://b/big", path).reason(), Reason::kManifest);
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_EQ(download(*fetcher, "s3://b/big", "/nonexistent/folder/file").reason(), Reason::kIndexDir);
}

}  // namespace
}  // namespace stoker

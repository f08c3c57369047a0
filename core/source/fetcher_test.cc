#include <dirent.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <latch>
#include <mutex>
#include <set>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/log.h"
#include "source/memory/memory_source.h"
#include "source/source.h"
#include "source/testing/loopback_server.h"

namespace stoker {
namespace {

using namespace std::chrono_literals;
using stoker::testing::LoopbackServer;
using stoker::testing::ServerReply;
using stoker::testing::ServerRequest;
using ::testing::HasSubstr;
using ::testing::Not;
using Then = ServerReply::Then;

constexpr const char* kSecret = "TOPSECRETtopsecret/secret+key";

std::string object_of(const std::string& target, std::size_t n_bytes = 1000) {
  std::string body;
  while (body.size() < n_bytes) body += target + ";";
  body.resize(n_bytes);
  return body;
}

FetchSettings settings_for(const LoopbackServer& server) {
  FetchSettings s;
  s.storage.environment = [](const char*) {
    return std::optional<std::string>();
  };  // this machine's settings are not the test's
  s.storage.endpoint = server.endpoint();
  s.storage.access_key_id = "AKIDEXAMPLE";
  s.storage.secret_access_key = kSecret;
  s.storage.session_token = "SESSIONsession";
  s.retry = {1ms, 20ms};
  s.hedge_share = 0;  // for tests that count requests
  s.jitter_seed = 7;
  return s;
}

std::unique_ptr<Fetcher> make(FetchSettings settings) {
  auto fetcher = Fetcher::create(std::move(settings));
  EXPECT_TRUE(fetcher.ok()) << fetcher.status().to_string();
  return std::move(fetcher).value();
}

std::string text(const FetchedObject& object) {
  return {reinterpret_cast<const char*>(object.bytes.data()), object.bytes.size()};
}

std::string url_of(int i) { return fmt::format("s3://b/{}", i); }
std::string target_of(int i) { return fmt::format("/b/{}", i); }

FetchRequest request_for(std::string url, std::uint64_t priority = 0) {
  FetchRequest request;
  request.url = std::move(url);
  request.priority = priority;
  return request;
}

ServerReply error_reply(int status, const std::string& code, const std::string& more = "") {
  ServerReply reply;
  reply.status = status;
  reply.body =
      "<?xml version=\"1.0\"?>\n<Error><Code>" + code + "</Code><Message>said the store</Message>" + more + "</Error>";
  return reply;
}

// Serves every key; ranges as S3 does.
ServerReply serve(const ServerRequest& request, std::size_t n_bytes = 1000) {
  ServerReply reply;
  const std::string whole = object_of(request.target, n_bytes);
  reply.headers = {{"ETag", "\"tag\""}};
  reply.body = whole;
  const auto range = request.headers.find("range");
  if (range == request.headers.end()) return reply;
  const std::size_t dash = range->second.find('-');
  const std::size_t first = std::stoul(range->second.substr(6, dash - 6));
  if (first >= n_bytes) {
    reply.status = 416;
    reply.body.clear();
    reply.headers = {{"Content-Range", fmt::format("bytes */{}", n_bytes)}};
    return reply;
  }
  const std::string last_text = range->second.substr(dash + 1);
  const std::size_t end = std::min(n_bytes, last_text.empty() ? n_bytes : std::stoul(last_text) + 1);
  reply.status = 206;
  reply.body = whole.substr(first, end - first);
  reply.headers.emplace_back("Content-Range", fmt::format("bytes {}-{}/{}", first, end - 1, n_bytes));
  return reply;
}

// Answers of many requests, and when all are there.
class Answers {
 public:
  explicit Answers(int n) : left_(n) {}
  FetchDone slot(int i) {
    return [this, i](Result<FetchedObject> result) {
      {
        const std::lock_guard lock(mu_);
        ++n_calls_[i];
        order_.push_back(i);
        (result.ok() ? n_ok_ : n_failed_) += 1;
        results_.insert_or_assign(i, std::move(result));
      }
      left_.count_down();
    };
  }
  void wait() { left_.wait(); }
  int n_ok() const { return n_ok_; }
  int n_failed() const { return n_failed_; }
  const std::vector<int>& order() const { return order_; }
  const Result<FetchedObject>& at(int i) const { return results_.at(i); }
  bool each_once() const {
    return std::all_of(n_calls_.begin(), n_calls_.end(), [](const auto& c) { return c.second == 1; });
  }

 private:
  std::latch left_;
  std::mutex mu_;
  std::map<int, Result<FetchedObject>> results_;
  std::map<int, int> n_calls_;
  std::vector<int> order_;
  int n_ok_ = 0;
  int n_failed_ = 0;
};

/// The objects 0 to n - 1.
void submit_all(Fetcher& fetcher, int n, Answers& answers) {
  for (int i = 0; i < n; ++i) fetcher.submit(request_for(url_of(i)), answers.slot(i));
}

class Lines {
 public:
  Lines() {
    set_log_sink([this](LogLevel, std::string_view line) {
      const std::lock_guard lock(mu_);
      all_ += std::string(line) + "\n";
    });
  }
  ~Lines() { set_log_sink({}); }
  std::string all() const {
    const std::lock_guard lock(mu_);
    return all_;
  }

 private:
  mutable std::mutex mu_;
  std::string all_;
};

int n_descriptors() {
  int n = 0;
  DIR* folder = opendir("/proc/self/fd");
  while (readdir(folder)) ++n;
  closedir(folder);
  return n;
}

TEST(Fetcher, ReadsWholeObjectsAndParts) {
  LoopbackServer server([](const ServerRequest& r) { return serve(r); });
  auto fetcher = make(settings_for(server));
  const std::string whole = object_of("/b/k.png");
  auto object = fetcher->fetch(request_for("s3://b/k.png"));
  ASSERT_TRUE(object.ok()) << object.status().to_string();
  EXPECT_EQ(text(*object), whole);
  EXPECT_EQ(object->total_bytes, 1000U);
  EXPECT_EQ(object->etag, "\"tag\"");
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

TEST(Fetcher, AServerThatIgnoresRangesIsStillRight) {
  LoopbackServer server([](const ServerRequest& r) {
    ServerReply reply;
    reply.body = object_of(r.target, 2'000'000);
    return reply;
  });
  auto fetcher = make(settings_for(server));
  FetchRequest request = request_for("s3://b/k");
  request.offset = 100;
  request.length = 50;
  for (int i = 0; i < 3; ++i) {
    auto part = fetcher->fetch(request);
    ASSERT_TRUE(part.ok()) << part.status().to_string();
    EXPECT_EQ(text(*part), object_of("/b/k", 2'000'000).substr(100, 50));
    EXPECT_EQ(part->total_bytes, 2'000'000U);
  }
}

TEST(Fetcher, RefusesAWrongRangeAndALyingLength) {
  std::atomic<int> n{0};
  LoopbackServer server([&](const ServerRequest& r) {
    ServerReply reply = serve(r);
    switch (n.fetch_add(1)) {
      case 0:
        reply.headers.back().second = "bytes 7-16/1000";
        break;  // not what was asked for
      case 1:
        reply.headers.back().second = "bytes 5-8/1000";
        break;  // too little of it
      case 2:
        reply.headers.pop_back();
        break;  // does not say
      case 3:
        reply.headers.back().second = "bytes 14-5/x";
        break;  // nonsense
      default:
        break;
    }
    return reply;
  });
  auto fetcher = make(settings_for(server));
  FetchRequest request = request_for("s3://b/k");
  request.offset = 5;
  request.length = 10;
  auto part = fetcher->fetch(request);
  ASSERT_TRUE(part.ok()) << part.status().to_string();
  EXPECT_EQ(text(*part), object_of("/b/k").substr(5, 10));
  EXPECT_EQ(n.load(), 5);
}

TEST(Fetcher, ReadsChunkedBodiesAndRefusesOnesWithoutAnEnd) {
  LoopbackServer server([](const ServerRequest& r) {
    ServerReply reply;
    if (r.target == "/b/chunked") {
      reply.raw = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n";
    } else {
      reply.raw = "HTTP/1.0 200 OK\r\n\r\nhalf a picture";
      reply.then = Then::kClose;
    }
    return reply;
  });
  auto settings = settings_for(server);
  settings.outage_limit_s = 0.05;
  auto fetcher = make(settings);
  auto object = fetcher->fetch(request_for("s3://b/chunked"));
  ASSERT_TRUE(object.ok()) << object.status().to_string();
  EXPECT_EQ(text(*object), "hello world");
  EXPECT_EQ(object->total_bytes, 11U);
  auto endless = fetcher->fetch(request_for("s3://b/old"));
  EXPECT_EQ(endless.status().reason(), Reason::kOutage) << endless.status().to_string();
  EXPECT_THAT(endless.status().message(), HasSubstr("without a length"));
}

TEST(Fetcher, AnEmptyObjectIsAnObject) {
  LoopbackServer server([](const ServerRequest&) { return ServerReply{}; });
  auto fetcher = make(settings_for(server));
  auto object = fetcher->fetch(request_for("s3://b/empty"));
  ASSERT_TRUE(object.ok()) << object.status().to_string();
  EXPECT_EQ(object->bytes.size(), 0U);
  EXPECT_EQ(object->total_bytes, 0U);
}

TEST(Fetcher, AHugeLengthIsRefusedBeforeMemoryIsTaken) {
  LoopbackServer server([](const ServerRequest&) {
    ServerReply reply;
    reply.body.assign(1, 'x');
    reply.announced = std::uint64_t{10} << 30;
    reply.then = Then::kStall;
    return reply;
  });
  auto fetcher = make(settings_for(server));
  auto object = fetcher->fetch(request_for("s3://b/k"));
  EXPECT_EQ(object.status().reason(), Reason::kMediaTooLarge) << object.status().to_string();
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
  EXPECT_EQ(stats.n_in_flight + stats.n_waiting + stats.n_retrying, 0);
  EXPECT_LT(stats.limit, 64);
  Answers more(6000);
  for (int i = 0; i < 6000; ++i) fetcher->submit(request_for(url_of(i % 256)), more.slot(i));
  more.wait();
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

// NET-03
TEST(Fetcher, AShortBodyIsNeverTakenForTheWhole) {
  for (const Then then : {Then::kClose, Then::kReset}) {
    std::atomic<int> n{0};
    LoopbackServer server([&](const ServerRequest& r) {
      ServerReply reply = serve(r);
      if (n.fetch_add(1) == 0) {
        reply.n_send = 600;
        reply.then = then;
      }
      return reply;
    });
    auto fetcher = make(settings_for(server));
    auto object = fetcher->fetch(request_for("s3://b/k"));
    ASSERT_TRUE(object.ok()) << object.status().to_string();
    EXPECT_EQ(text(*object), object_of("/b/k"));
    EXPECT_EQ(fetcher->stats().n_retries, 1);
  }
}

TEST(Fetcher, AShortBodyIsContinuedWhereItEnded) {
  std::atomic<std::size_t> n_sent{0};
  std::atomic<int> n{0};
  LoopbackServer server([&](const ServerRequest& r) {
    ServerReply reply = serve(r, 100'000);
    if (n.fetch_add(1) < 3) {
      reply.n_send = 30'000;
      reply.then = Then::kClose;
    }
    n_sent += std::min(reply.n_send, reply.body.size());
    return reply;
  });
  const auto fetcher = make(settings_for(server));
  auto whole = fetcher->fetch(request_for("s3://b/k"));
  ASSERT_TRUE(whole.ok()) << whole.status().to_string();
  EXPECT_EQ(text(*whole), object_of("/b/k", 100'000));
  EXPECT_EQ(whole->total_bytes, 100'000U);
  EXPECT_EQ(n_sent, 100'000U) << "no byte came twice";

  n = n_sent = 0;
  auto part = fetcher->fetch({.url = "s3://b/k", .offset = 1'000, .length = 70'000});
  ASSERT_TRUE(part.ok()) << part.status().to_string();
  EXPECT_EQ(text(*part), object_of("/b/k", 100'000).substr(1'000, 70'000));
  EXPECT_EQ(n_sent, 70'000U);
}

TEST(Fetcher, AnObjectThatChangesInTheMiddleIsReadFromItsBeginning) {
  for (const bool checks_tags : {true, false}) {
    std::atomic<int> n{0};
    LoopbackServer server([&](const ServerRequest& r) {
      ServerReply reply = serve(r);
      if (n.fetch_add(1) == 0) {
        reply.n_send = 600;
        reply.then = Then::kClose;
        return reply;
      }
      std::transform(reply.body.begin(), reply.body.end(), reply.body.begin(),
                     [](char c) { return c == 'k' ? 'K' : c; });
      for (auto& [name, value] : reply.headers) {
        if (name == "ETag") value = "\"new\"";
      }
      if (checks_tags && r.headers.contains("if-match")) return error_reply(412, "PreconditionFailed");
      return reply;
    });
    auto object = make(settings_for(server))->fetch(request_for("s3://b/k"));
    ASSERT_TRUE(object.ok()) << object.status().to_string();
    std::string wanted = object_of("/b/k");
    std::replace(wanted.begin(), wanted.end(), 'k', 'K');
    EXPECT_EQ(text(*object), wanted);
    EXPECT_EQ(object->etag, "\"new\"");
    EXPECT_EQ(n, 3);
  }
  // Who named the tag is told, instead of getting another object.
  std::atomic<int> n{0};
  LoopbackServer server([&](const ServerRequest& r) {
    ServerReply reply = serve(r);
    reply.n_send = 600;
    reply.then = Then::kClose;
    return n.fetch_add(1) == 0 ? reply : error_reply(412, "PreconditionFailed");
  });
  FetchRequest request = request_for("s3://b/k");
  request.if_match = "\"tag\"";
  EXPECT_EQ(make(settings_for(server))->fetch(std::move(request)).status().reason(), Reason::kMediaChanged);
}

TEST(Fetcher, AShortBodyWithoutEndSaysHowMuchCame) {
  LoopbackServer server([&](const ServerRequest& r) {
    ServerReply reply = serve(r);
    reply.headers.clear();  // without a tag nothing can be continued
    reply.n_send = 600;
    reply.then = Then::kClose;
    return reply;
  });
  auto settings = settings_for(server);
  settings.outage_limit_s = 0.05;
  auto object = make(settings)->fetch(request_for("s3://b/k"));
  EXPECT_EQ(object.status().reason(), Reason::kOutage);
  EXPECT_THAT(object.status().message(), HasSubstr("FETCH_SHORT_BODY"));
  EXPECT_THAT(object.status().message(), HasSubstr("600 of 1000 bytes"));
}

// NET-04
TEST(Fetcher, FollowsABucketToItsRegionOnceAndRemembers) {
  std::atomic<int> n_redirects{0};
  LoopbackServer server([&](const ServerRequest& r) {
    if (r.headers.at("authorization").find("/eu-x/s3/") != std::string::npos) return serve(r);
    n_redirects.fetch_add(1);
    ServerReply reply = error_reply(301, "PermanentRedirect", "<Endpoint>b.s3.eu-x.example</Endpoint>");
    reply.headers = {{"x-amz-bucket-region", "eu-x"}};
    return reply;
  });
  auto fetcher = make(settings_for(server));
  ASSERT_TRUE(fetcher->fetch(request_for("s3://b/1")).ok());
  ASSERT_TRUE(fetcher->fetch(request_for("s3://b/2")).ok());
  EXPECT_EQ(n_redirects.load(), 1);
}

TEST(Fetcher, ARedirectThatLeadsNowhereIsAnErrorNotALoop) {
  LoopbackServer server([](const ServerRequest& r) {
    ServerReply reply = error_reply(301, "PermanentRedirect");
    reply.headers = {{"x-amz-bucket-region", fmt::format("eu-{}", r.number)}};
    return reply;
  });
  auto object = make(settings_for(server))->fetch(request_for("s3://b/k"));
  EXPECT_EQ(object.status().reason(), Reason::kFetchRedirect) << object.status().to_string();
  EXPECT_THAT(object.status().message(), HasSubstr("bucket \"b\" is in region eu-1, the client is set to eu-0"));
  EXPECT_LE(server.n_requests(), 3);
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

// NET-07
TEST(Fetcher, ProgressTimeoutsSayWhichAndHowMuch) {
  LoopbackServer server([](const ServerRequest& r) {
    ServerReply reply = serve(r);
    reply.stalls_first = r.target == "/b/silent";
    reply.headers.clear();  // without a tag nothing can be continued
    reply.n_send = 600;
    reply.then = Then::kStall;
    return reply;
  });
  auto settings = settings_for(server);
  settings.timeouts.first_byte = 60ms;
  settings.timeouts.stall = 60ms;
  settings.outage_limit_s = 0.05;
  auto fetcher = make(settings);
  auto silent = fetcher->fetch(request_for("s3://b/silent"));
  EXPECT_THAT(silent.status().message(), HasSubstr("FETCH_TIMEOUT"));
  EXPECT_THAT(silent.status().message(), HasSubstr("first byte"));
  auto stalled = fetcher->fetch(request_for("s3://b/half"));
  EXPECT_THAT(stalled.status().message(), HasSubstr("FETCH_TIMEOUT"));
  EXPECT_THAT(stalled.status().message(), HasSubstr("600 of 1000 bytes"));
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

TEST(Fetcher, ServerErrorsAndGarbageAreTriedAgain) {
  std::atomic<int> n{0};
  LoopbackServer server([&](const ServerRequest& r) {
    const int i = n.fetch_add(1);
    ServerReply reply;
    if (i == 0) return error_reply(500, "InternalError");
    if (i == 1) return error_reply(502, "");
    if (i == 2) {
      reply.raw = "\x16\x03\x01 garbage\r\n\r\n";
      reply.then = Then::kClose;
      return reply;
    }
    if (i == 3) {
      reply.n_send = 0;
      reply.raw.assign(1, ' ');
      reply.then = Then::kReset;
      return reply;
    }
    if (i == 4) return error_reply(400, "BadRequest");
    if (i == 5) {
      reply = error_reply(429, "");
      reply.headers = {{"Retry-After", "0"}};
      return reply;
    }
    return serve(r);
  });
  auto fetcher = make(settings_for(server));
  auto object = fetcher->fetch(request_for("s3://b/k"));
  ASSERT_TRUE(object.ok()) << object.status().to_string();
  EXPECT_EQ(text(*object), object_of("/b/k"));
  EXPECT_EQ(n.load(), 7);
}

TEST(Fetcher, RetryAfterIsHonoured) {
  std::atomic<int> n{0};
  LoopbackServer server([&](const ServerRequest& r) {
    if (n.fetch_add(1) > 0) return serve(r);
    ServerReply reply = error_reply(503, "SlowDown");
    reply.headers = {{"Retry-After", "1"}};
    return reply;
  });
  auto fetcher = make(settings_for(server));
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_TRUE(fetcher->fetch(request_for("s3://b/k")).ok());
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 1s);
}

TEST(Fetcher, AStoreThatIsDownIsAnOutageAndIsLoggedOnce) {
  const Lines lines;
  int port = 0;
  FetchSettings settings;
  {
    LoopbackServer server([](const ServerRequest& r) { return serve(r); });
    settings = settings_for(server);
    port = server.port();
  }  // nobody listens there any more
  settings.outage_limit_s = 2.5;
  auto fetcher = make(settings);
  auto object = fetcher->fetch(request_for("s3://b/k"));
  EXPECT_EQ(object.status().reason(), Reason::kOutage) << object.status().to_string();
  EXPECT_THAT(object.status().message(), HasSubstr("FETCH_CONNECT"));
  EXPECT_THAT(object.status().message(), HasSubstr(std::to_string(port)));
  const std::string all = lines.all();
  const std::size_t first = all.find("storage does not answer");
  ASSERT_NE(first, std::string::npos) << all;
  EXPECT_EQ(all.find("storage does not answer", first + 1), std::string::npos) << all;
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

TEST(Fetcher, TenThousandRequestsUnderFaultsLeakNoDescriptors) {
  LoopbackServer server([](const ServerRequest& r) {
    ServerReply reply = serve(r, 200);
    switch (r.number % 40) {
      case 7:
        reply.n_send = 100, reply.then = Then::kClose;
        break;
      case 17:
        return error_reply(500, "InternalError");
      case 27:
        reply.then = Then::kReset, reply.n_send = 0;
        break;
      default:
        break;
    }
    return reply;
  });
  auto settings = settings_for(server);
  settings.concurrency = 32;
  auto fetcher = make(settings);
  constexpr int kBatch = 1000;
  int after_first = 0;
  for (int batch = 0; batch < 10; ++batch) {
    Answers answers(kBatch);
    submit_all(*fetcher, kBatch, answers);
    answers.wait();
    ASSERT_EQ(answers.n_ok(), kBatch);
    for (int i = 0; i < kBatch; ++i) ASSERT_EQ(text(*answers.at(i)), object_of(target_of(i), 200));
    if (batch == 0) after_first = n_descriptors();
  }
  EXPECT_LE(n_descriptors(), after_first + 2 * 32);
  fetcher.reset();
  EXPECT_LE(n_descriptors(), after_first) << "a stopped fetcher holds descriptors";
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

#include "source/s3/credentials.h"

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <latch>
#include <semaphore>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

// Gives KEY1, KEY2, ... or what the test says.
class FakeSource final : public KeySource {
 public:
  using Answer = std::function<Result<SourcedKeys>(int n, bool afresh, const std::stop_token& stop)>;
  explicit FakeSource(Answer answer) : answer_(std::move(answer)) {}
  Result<SourcedKeys> get(bool afresh, std::stop_token stop) override {
    const int n_inside = ++n_inside_;
    EXPECT_EQ(n_inside, 1) << "one question at a time";
    const int n = ++n_asked;
    Result<SourcedKeys> got = answer_(n, afresh, stop);
    --n_inside_;
    return got;
  }
  std::atomic<int> n_asked{0};

 private:
  Answer answer_;
  std::atomic<int> n_inside_{0};
};

SourcedKeys keys(int n, std::optional<Nanos> valid_for = std::nullopt) {
  return {{fmt::format("KEY{}", n), fmt::format("secret{}", n), ""}, valid_for, "the test's source"};
}

StorageSettings settings_with(std::shared_ptr<KeySource> source) {
  StorageSettings s;
  s.environment = [](const char*) { return std::optional<std::string>(); };
  s.key_source = std::move(source);
  return s;
}

// Bounded, so that a bug is a failure and not a hang.
bool eventually(const std::function<bool()>& is_so) {
  for (const auto end = std::chrono::steady_clock::now() + 10s; std::chrono::steady_clock::now() < end;) {
    if (is_so()) return true;
    std::this_thread::sleep_for(1ms);
  }
  return false;
}

TEST(CredentialStore, AsksTheSourceOnlyWhenKeysAreWantedAndNeverWaits) {
  std::binary_semaphore go(0);
  const auto source = std::make_shared<FakeSource>([&](int n, bool afresh, const std::stop_token&) {
    EXPECT_FALSE(afresh);
    go.acquire();
    return keys(n);
  });
  CredentialStore store(settings_with(source));
  EXPECT_EQ(source->n_asked, 0);
  const auto pending = store.current();
  EXPECT_EQ(pending.status().reason(), Reason::kFetchKeysPending);
  EXPECT_THAT(pending.status().message(), HasSubstr("no S3 credentials in the settings"));
  go.release();
  ASSERT_TRUE(eventually([&] { return store.current().ok(); }));
  EXPECT_EQ(store.current()->keys.access_key_id, "KEY1");
  EXPECT_EQ(store.provider(), "the test's source");
  EXPECT_EQ(source->n_asked, 1) << "no expiry: not asked again";
}

TEST(CredentialStore, AsksAgainAheadOfTheEndSoThatNobodyMeetsIt) {
  const auto source = std::make_shared<FakeSource>([](int n, bool, const std::stop_token&) { return keys(n, 1200ms); });
  CredentialStore store(settings_with(source));
  ASSERT_TRUE(eventually([&] { return store.current().ok(); }));
  ASSERT_TRUE(eventually([&] {
    EXPECT_TRUE(store.current().ok()) << store.current().status().to_string();
    return store.current()->keys.access_key_id == "KEY2";
  }));
}

TEST(CredentialStore, RefusedKeysAreAskedForAfreshOnceByAllWhoCome) {
  std::binary_semaphore go(1);
  const auto source = std::make_shared<FakeSource>([&](int n, bool afresh, const std::stop_token&) {
    EXPECT_EQ(afresh, n > 1);
    go.acquire();
    return keys(std::min(n, 2));
  });
  CredentialStore store(settings_with(source));
  ASSERT_TRUE(eventually([&] { return store.current().ok(); }));
  const std::uint64_t first = store.current()->generation;
  for (int i = 0; i < 100; ++i) EXPECT_EQ(store.refresh(first), Refreshed::kPending);
  EXPECT_EQ(store.current().status().reason(), Reason::kFetchKeysPending) << "refused keys are not used";
  go.release();
  ASSERT_TRUE(eventually([&] { return store.current().ok(); }));
  EXPECT_EQ(store.current()->keys.access_key_id, "KEY2");
  EXPECT_EQ(store.refresh(first), Refreshed::kNew);
  EXPECT_EQ(source->n_asked, 2);
  // The store refuses these too, and the source has no others: said, and not asked again at once.
  const std::uint64_t second = store.current()->generation;
  EXPECT_EQ(store.refresh(second), Refreshed::kPending);
  go.release();
  ASSERT_TRUE(eventually([&] { return store.current().ok(); }));
  for (int i = 0; i < 100; ++i) EXPECT_EQ(store.refresh(second), Refreshed::kSame);
  EXPECT_EQ(source->n_asked, 3);
  EXPECT_TRUE(store.is_betrayed_by("... KEY1 ...")) << "earlier keys are still secrets";
  EXPECT_TRUE(store.is_betrayed_by("secret%32"));
  EXPECT_FALSE(store.is_betrayed_by("secret"));
}

TEST(CredentialStore, AFailureIsSaidWithoutWhatCouldBeAKeyAndTriedAgain) {
  const auto source = std::make_shared<FakeSource>([](int n, bool, const std::stop_token&) -> Result<SourcedKeys> {
    if (n == 1)
      return Status(Reason::kFetchCredentials,
                    "no session for AKIDEXAMPLE123456789 (wJalrXUtnFEMI/K7MDENG+bPx): log in");
    return keys(n);
  });
  CredentialStore store(settings_with(source));
  ASSERT_TRUE(eventually([&] { return store.current().status().reason() == Reason::kFetchCredentials; }));
  const std::string message = store.current().status().message();
  EXPECT_THAT(message, HasSubstr("no session for ... (...): log in"));
  ASSERT_TRUE(eventually([&] { return store.current().ok(); })) << "after a second";
}

TEST(CredentialStore, ASourceThatHangsIsLeftAtOnce) {
  std::latch inside(1);
  const auto source = std::make_shared<FakeSource>([&](int, bool, const std::stop_token& stop) -> Result<SourcedKeys> {
    inside.count_down();
    while (!stop.stop_requested()) std::this_thread::sleep_for(1ms);
    return Status(Reason::kStopped, "stopped");
  });
  CredentialStore store(settings_with(source));
  EXPECT_FALSE(store.current().ok());
  inside.wait();
  const auto began = std::chrono::steady_clock::now();
  store.stop();
  EXPECT_LT(std::chrono::steady_clock::now() - began, 1s);
  EXPECT_FALSE(store.current().ok());
}

TEST(CredentialStore, LeavesToTheSourceWhatProfilesNameBeforeKeys) {
  const auto source = std::make_shared<FakeSource>([](int n, bool, const std::stop_token&) { return keys(n); });
  const std::string path = ::testing::TempDir() + "stoker_config_" + std::to_string(getpid());
  const std::string both = "aws_access_key_id = FILEKEY\naws_secret_access_key = s\n";
  const auto id_of = [&](const std::string& profile, std::string profile_name = "", std::string token_file = "") {
    std::ofstream(path, std::ios::trunc) << "[default]\n" << profile << "[profile named]\n" << profile;
    StorageSettings s = settings_with(source);
    s.profile = std::move(profile_name);
    s.environment = [&](const char* name) -> std::optional<std::string> {
      const std::string_view variable = name;
      if (variable == "AWS_CONFIG_FILE") return path;
      if (!token_file.empty() && (variable == "AWS_WEB_IDENTITY_TOKEN_FILE" || variable == "AWS_ROLE_ARN"))
        return token_file;
      return std::nullopt;
    };
    CredentialStore store(s);
    EXPECT_TRUE(eventually([&] { return store.current().ok(); }));
    return store.current()->keys.access_key_id.substr(0, 3);
  };
  EXPECT_EQ(id_of(both), "FIL");
  EXPECT_EQ(id_of(both + "credential_process = x\n"), "FIL");
  EXPECT_EQ(id_of("credential_process = x\n"), "KEY");
  EXPECT_EQ(id_of(both + "role_arn = x\n"), "KEY");
  EXPECT_EQ(id_of(both + "sso_session = x\n"), "KEY");
  EXPECT_EQ(id_of(both, "", "/token"), "KEY") << "a pod's identity comes before files";
  EXPECT_EQ(id_of(both, "named", "/token"), "FIL") << "but not before a profile named by hand";
  std::filesystem::remove(path);
}

// NET-02: refused in the middle of many requests; all wait for the one question, and every one comes through.
TEST(CredentialStore, RequestsWaitForFreshKeysAndComeThrough) {
  std::atomic<int> valid{1};
  LoopbackServer server([&](const ServerRequest& r) {
    ServerReply reply;
    if (r.headers.at("authorization").find(fmt::format("KEY{}/", valid.load())) == std::string::npos) {
      reply.status = 403;
      reply.body = "<Error><Code>ExpiredToken</Code><Message>" + r.headers.at("authorization") + "</Message></Error>";
      return reply;
    }
    reply.body = r.target;
    return reply;
  });
  const auto source = std::make_shared<FakeSource>([](int n, bool, const std::stop_token&) { return keys(n, 1h); });
  FetchSettings s;
  s.storage = settings_with(source);
  s.storage.endpoint = server.endpoint();
  s.retry = {1ms, 20ms};
  auto fetcher = Fetcher::create(s);
  ASSERT_TRUE(fetcher.ok());
  for (int round = 1; round <= 3; ++round) {
    valid = round;
    std::latch left(100);
    std::atomic<int> n_ok{0};
    for (int i = 0; i < 100; ++i) {
      (*fetcher)->submit({.url = fmt::format("s3://b/{}", i)}, [&](Result<FetchedObject> got) {
        EXPECT_TRUE(got.ok()) << got.status().to_string();
        n_ok += got.ok();
        left.count_down();
      });
    }
    left.wait();
    EXPECT_EQ(n_ok, 100);
    EXPECT_EQ(source->n_asked, round);
  }
}

}  // namespace
}  // namespace stoker

// What may be wrong with bytes that came: checksums, packing; and everything that a store does wrong, at random.

#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/rng.h"
#include "source/checksum/checksum.h"
#include "source/source.h"
#include "source/testing/fetch_fixture.h"
#include "source/testing/loopback_server.h"

namespace stoker {
namespace {

using namespace std::chrono_literals;
using namespace stoker::testing;
using ::testing::HasSubstr;
using Then = ServerReply::Then;

TEST(Bodies, BytesWithAnotherChecksumAreReadAgain) {
  // CRC32 of object_of("/b/k").
  const std::string whole = object_of("/b/k");
  auto sum = Checksum::expect(Checksum::Kind::kCrc32, "AAAAAA==");
  sum->update(std::as_bytes(std::span(whole)));
  const std::string right = sum->computed();
  LoopbackServer server([&](const ServerRequest& r) {
    ServerReply reply = serve(r);
    EXPECT_EQ(r.headers.contains("x-amz-checksum-mode"), !r.headers.contains("range"));
    EXPECT_EQ(r.headers.at("authorization").find("x-amz-checksum-mode") != std::string::npos,
              !r.headers.contains("range"));
    reply.headers.emplace_back("x-amz-checksum-crc32", right);
    if (r.number < 4) reply.body[100 + static_cast<std::size_t>(r.number) / 2] ^= 1;  // the same damage twice
    if (r.number == 4) reply.n_send = 600, reply.then = Then::kClose;                 // the fifth comes in two pieces
    return reply;
  });
  const auto fetcher = make(settings_for(server));
  auto object = fetcher->fetch(request_for("s3://b/k"));
  ASSERT_TRUE(object.ok()) << object.status().to_string();
  EXPECT_EQ(text(*object), whole);
  EXPECT_EQ(server.n_requests(), 6);
}

TEST(Bodies, AChecksumThatIsAlwaysWrongIsProof) {
  LoopbackServer server([&](const ServerRequest& r) {
    ServerReply reply = serve(r);
    reply.headers.emplace_back("x-amz-checksum-crc32c", "AAAAAA==");
    return reply;
  });
  auto settings = settings_for(server);
  auto object = make(settings)->fetch(request_for("s3://b/k"));
  EXPECT_EQ(object.status().reason(), Reason::kMediaChecksum) << object.status().to_string();
  EXPECT_THAT(object.status().message(), HasSubstr("CRC32C AAAAAA=="));
  EXPECT_EQ(server.n_requests(), 3);
  settings.storage.environment = [](const char* name) -> std::optional<std::string> {
    if (std::string_view(name) == "AWS_RESPONSE_CHECKSUM_VALIDATION") return "when_required";
    return std::nullopt;
  };
  LoopbackServer unasked([](const ServerRequest& r) {
    EXPECT_FALSE(r.headers.contains("x-amz-checksum-mode"));
    return serve(r);
  });
  settings.storage.endpoint = unasked.endpoint();
  EXPECT_TRUE(make(settings)->fetch(request_for("s3://b/k")).ok());
}

// A store that packs what it was not asked to pack.
TEST(Bodies, PackedBodiesAreUnpackedWholeAndInParts) {
  constexpr int kGzip = 31, kZlib = 15;
  const std::string text_of_all = object_of("rows", 300'000);
  LoopbackServer server([&](const ServerRequest& r) {
    EXPECT_EQ(r.headers.at("accept-encoding"), "identity");
    const bool is_gzip = r.target.starts_with("/b/gzip");
    ServerReply reply = serve_bytes(r, r.target == "/b/bomb" ? packed(std::string(5'000'000, 'x'), kGzip)
                                                             : packed(text_of_all, is_gzip ? kGzip : kZlib));
    if (r.target == "/b/gzip/damaged" && reply.body.size() > 100) reply.body[100] ^= 0x55;
    if (reply.status != 416)
      reply.headers.emplace_back("Content-Encoding", r.target == "/b/br"        ? "br"
                                                     : r.target == "/b/deflate" ? "deflate"
                                                                                : "gzip");
    return reply;
  });
  auto settings = settings_for(server);
  settings.max_object_bytes = 4'000'000;
  const auto fetcher = make(settings);
  const auto get = [&](const char* key, std::uint64_t offset = 0, std::optional<std::uint64_t> length = std::nullopt) {
    return fetcher->fetch({.url = std::string("s3://b/") + key, .offset = offset, .length = length});
  };
  for (const char* key : {"gzip", "deflate"}) {
    auto whole = get(key);
    ASSERT_TRUE(whole.ok()) << whole.status().to_string();
    EXPECT_EQ(text(*whole), text_of_all);
    EXPECT_EQ(whole->total_bytes, text_of_all.size());
    auto part = get(key, 100, 50);
    ASSERT_TRUE(part.ok()) << part.status().to_string();
    EXPECT_EQ(text(*part), text_of_all.substr(100, 50));
    EXPECT_EQ(part->total_bytes, text_of_all.size());
    auto tail = get(key, 299'990);  // far behind the end of what is stored
    ASSERT_TRUE(tail.ok()) << tail.status().to_string();
    EXPECT_EQ(text(*tail), text_of_all.substr(299'990));
  }
  auto stored = fetcher->fetch({.url = "s3://b/gzip", .length = 10, .as_stored = true});
  ASSERT_TRUE(stored.ok()) << stored.status().to_string();
  EXPECT_EQ(text(*stored), packed(text_of_all, kGzip).substr(0, 10));

  // Manifests are mirrored as they are stored: who reads the file knows gzip by its content.
  const std::string path = ::testing::TempDir() + "stoker_packed_" + std::to_string(getpid());
  ASSERT_TRUE(download(*fetcher, "s3://b/gzip", path).ok());
  std::ifstream in(path, std::ios::binary);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}), packed(text_of_all, kGzip));
  std::filesystem::remove(path);
  EXPECT_EQ(download(*fetcher, "s3://b/br", path).reason(), Reason::kManifest);

  EXPECT_EQ(get("bomb").status().reason(), Reason::kMediaTooLarge);
  EXPECT_EQ(get("bomb", 0, 10).status().reason(), Reason::kMediaTooLarge);
  EXPECT_EQ(get("gzip/damaged").status().reason(), Reason::kMediaEncoding);
  for (const auto& length : {std::optional<std::uint64_t>(10), std::optional<std::uint64_t>()}) {
    auto unknown = get("br", 0, length);
    EXPECT_EQ(unknown.status().reason(), Reason::kMediaEncoding) << unknown.status().to_string();
    EXPECT_THAT(unknown.status().message(), HasSubstr("Content-Encoding \"br\""));
  }
}

// One request in twenty, at random, meets one of the things that go wrong.
class FaultyStore {
 public:
  static constexpr std::size_t kObjectBytes = 2000;

  ServerReply answer(const ServerRequest& r) {
    ServerReply reply = serve(r, kObjectBytes);
    auto sum = Checksum::expect(Checksum::Kind::kCrc32c, "AAAAAA==");
    sum->update(std::as_bytes(std::span(reply.body)));
    if (reply.status == 200) reply.headers.emplace_back("x-amz-checksum-crc32c", sum->computed());
    Rng rng(mix64(static_cast<std::uint64_t>(r.number)));
    if (rng.next() % 20 != 0) return reply;
    const std::size_t kind = rng.next() % n_faults_.size();
    ++n_faults_[kind];
    switch (kind) {
      case 0:  // reset, before or in the body
        reply.n_send = rng.next() % 1500;
        reply.then = Then::kReset;
        break;
      case 1:  // cut
        reply.n_send = rng.next() % 1500;
        reply.then = Then::kClose;
        break;
      case 2:
        return error_reply(503, "SlowDown");
      case 3:
        return error_reply(500, "InternalError");
      case 4:  // stall
        reply.n_send = rng.next() % 1500;
        reply.then = Then::kStall;
        reply.stalls_first = rng.next() % 2 == 0;
        break;
      case 5:  // damaged on the way
        reply.body[rng.next() % reply.body.size()] ^= 4;
        if (reply.status == 206) return error_reply(500, "InternalError");  // of a part nothing would tell
        break;
      default:
        break;
    }
    return reply;
  }
  const std::array<std::atomic<int>, 6>& n_faults() const { return n_faults_; }

 private:
  std::array<std::atomic<int>, 6> n_faults_{};
};

TEST(Bodies, TenThousandRequestsUnderRandomFaultsAreRightOnceAndLeakNothing) {
  FaultyStore store;
  LoopbackServer server([&](const ServerRequest& r) { return store.answer(r); });
  auto settings = settings_for(server);
  settings.concurrency = 64;
  settings.hedge_share = 0.02;
  settings.timeouts.first_byte = settings.timeouts.stall = 100ms;
  auto fetcher = make(settings);
  // STOKER_FAULTY_REQUESTS=100000 is the long form.
  const char* const wanted = std::getenv("STOKER_FAULTY_REQUESTS");
  const int n_batches = (wanted ? std::atoi(wanted) : 10'000) / 1000;
  constexpr int kBatch = 1000;
  int after_first = 0;
  for (int batch = 0; batch < n_batches; ++batch) {
    Answers answers(kBatch);
    for (int i = 0; i < kBatch; ++i) fetcher->submit(request_for(url_of(batch * kBatch + i)), answers.slot(i));
    answers.wait();
    ASSERT_TRUE(answers.each_once());
    for (int i = 0; i < kBatch; ++i) {
      ASSERT_TRUE(answers.at(i).ok()) << answers.at(i).status().to_string();
      ASSERT_EQ(text(*answers.at(i)), object_of(target_of(batch * kBatch + i), FaultyStore::kObjectBytes));
    }
    if (batch == 0) after_first = n_descriptors();
  }
  for (const auto& n : store.n_faults()) EXPECT_GT(n, n_batches) << "a fault that hardly came";
  const FetchStats stats = fetcher->stats();
  EXPECT_EQ(stats.n_succeeded, n_batches * kBatch);
  EXPECT_EQ(stats.n_failed, 0);
  EXPECT_LE(n_descriptors(), after_first + 2 * 64);
  fetcher.reset();
  EXPECT_LE(n_descriptors(), after_first) << "a stopped fetcher holds descriptors";
}

}  // namespace
}  // namespace stoker

// What servers do wrong. Every case ends in the right data, an error that says what happened, or a pause that ends.

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <ctime>
#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "source/source.h"
#include "source/testing/fetch_fixture.h"
#include "source/testing/loopback_server.h"

namespace stoker {
namespace {

using namespace std::chrono_literals;
using namespace stoker::testing;
using ::testing::HasSubstr;
using Then = ServerReply::Then;

TEST(HostileServer, AServerThatIgnoresRangesIsStillRight) {
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

TEST(HostileServer, RefusesAWrongRangeAndALyingLength) {
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

TEST(HostileServer, ReadsChunkedBodiesAndRefusesOnesWithoutAnEnd) {
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

TEST(HostileServer, AHugeLengthIsRefusedBeforeMemoryIsTaken) {
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

// NET-03
TEST(HostileServer, AShortBodyIsNeverTakenForTheWhole) {
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

TEST(HostileServer, AShortBodyIsContinuedWhereItEnded) {
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

TEST(HostileServer, AnObjectThatChangesInTheMiddleIsReadFromItsBeginning) {
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

TEST(HostileServer, AShortBodyWithoutEndSaysHowMuchCame) {
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
TEST(HostileServer, FollowsABucketToItsRegionOnceAndRemembers) {
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

TEST(HostileServer, ARedirectThatLeadsNowhereIsAnErrorNotALoop) {
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

// NET-07
TEST(HostileServer, ProgressTimeoutsSayWhichAndHowMuch) {
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

TEST(HostileServer, ServerErrorsAndGarbageAreTriedAgain) {
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

TEST(HostileServer, RetryAfterIsHonoured) {
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

TEST(HostileServer, AStoreThatIsDownIsAnOutageAndIsLoggedOnce) {
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

TEST(HostileServer, AStallInsideTheHeadersIsNoticed) {
  for (const std::string head : {"HTTP/1.1 200 OK\r\nContent-Le", "HTT"}) {
    LoopbackServer server([&](const ServerRequest& r) {
      ServerReply reply = serve(r);
      if (r.number > 0) return reply;
      reply.raw = head;
      reply.then = Then::kStall;
      return reply;
    });
    auto settings = settings_for(server);
    settings.timeouts.first_byte = settings.timeouts.stall = 60ms;
    const auto fetcher = make(settings);
    auto object = fetcher->fetch(request_for("s3://b/k"));
    ASSERT_TRUE(object.ok()) << object.status().to_string();
    EXPECT_EQ(text(*object), object_of("/b/k"));
    EXPECT_EQ(fetcher->stats().n_retries, 1);
  }
}

TEST(HostileServer, ASlowDripIsProgressAndEndsWell) {
  LoopbackServer server([](const ServerRequest& r) {
    ServerReply reply = serve(r);
    reply.drip_bytes = 4;
    return reply;
  });
  auto settings = settings_for(server);
  settings.timeouts.first_byte = settings.timeouts.stall = 120ms;
  const auto fetcher = make(settings);
  const auto begin = std::chrono::steady_clock::now();
  auto object = fetcher->fetch(request_for("s3://b/k"));
  EXPECT_GT(std::chrono::steady_clock::now() - begin, 200ms) << "no longer than the limits: proves nothing";
  ASSERT_TRUE(object.ok()) << object.status().to_string();
  EXPECT_EQ(text(*object), object_of("/b/k"));
  EXPECT_EQ(server.n_requests(), 1);
}

TEST(HostileServer, BurstsOfServerErrorsEnd) {
  constexpr std::array kStatuses = {500, 502, 503, 504};
  LoopbackServer server([&](const ServerRequest& r) {
    if (r.number >= 200) return serve(r);
    ServerReply reply;
    reply.status = kStatuses[static_cast<std::size_t>(r.number) % kStatuses.size()];
    if (r.number % 3 == 0) reply.body = "<html>Bad Gateway</html>";
    if (r.number % 5 == 0) reply.then = Then::kClose;
    return reply;
  });
  const auto fetcher = make(settings_for(server));
  Answers answers(50);
  submit_all(*fetcher, 50, answers);
  answers.wait();
  EXPECT_TRUE(answers.each_once());
  for (int i = 0; i < 50; ++i) {
    ASSERT_TRUE(answers.at(i).ok()) << answers.at(i).status().to_string();
    EXPECT_EQ(text(*answers.at(i)), object_of(target_of(i)));
  }
  EXPECT_EQ(fetcher->stats().n_retries, 200);
}

TEST(HostileServer, LengthsThatAreWrongAreNeverTakenForTheTruth) {
  struct Case {
    const char* target;
    const char* says;
  };
  LoopbackServer server([](const ServerRequest& r) {
    ServerReply reply = serve(r);
    std::erase_if(reply.headers, [](const auto& header) { return header.first == "ETag"; });
    if (r.target == "/b/longer") {
      reply.announced = 1400;
      reply.then = Then::kStall;
    } else if (r.target == "/b/range") {
      reply.announced = reply.body.size() - 4;  // of a 206 that says what it should have
    } else {
      reply.announced = ServerReply::kNoLength;
      reply.headers.emplace_back("Content-Length", "many");
    }
    return reply;
  });
  auto settings = settings_for(server);
  settings.timeouts.stall = 50ms;
  settings.outage_limit_s = 0.02;
  const auto fetcher = make(settings);
  for (const Case& c : {Case{"longer", "1000 of 1400 bytes"}, Case{"range", "6 of 10 bytes"},
                        Case{"nonsense", "no proper HTTP answer"}}) {
    FetchRequest request = request_for(std::string("s3://b/") + c.target);
    if (std::string_view(c.target) == "range") request.length = 10;
    auto object = fetcher->fetch(std::move(request));
    EXPECT_EQ(object.status().reason(), Reason::kOutage) << c.target << ": " << object.status().to_string();
    EXPECT_THAT(object.status().message(), HasSubstr(c.says));
  }
}

TEST(HostileServer, EndlessRedirectsEnd) {
  LoopbackServer server([](const ServerRequest& r) {
    ServerReply reply;
    reply.status = 302;
    reply.headers = {{"Location", fmt::format("/loop{}", r.number)}};
    return reply;
  });
  auto object = make(settings_for(server))->fetch(request_for(server.endpoint() + "/loop"));
  EXPECT_EQ(object.status().reason(), Reason::kFetchRedirect) << object.status().to_string();
  EXPECT_THAT(object.status().message(), HasSubstr("more than 5 redirects"));
  EXPECT_LE(server.n_requests(), 6);
}

TEST(HostileServer, AClockThatIsWrongIsCorrectedByTheStores) {
  // The store's day is another one: its date stands in the signature.
  const std::time_t in_15_hours = std::time(nullptr) + 15 * 3600;
  const std::time_t store_time = in_15_hours - in_15_hours % 3600 + 1800;  // no hour ends during the test
  LoopbackServer server([&](const ServerRequest& r) {
    std::tm at{};
    gmtime_r(&store_time, &at);
    char day[16], date[40];
    std::strftime(day, sizeof day, "%Y%m%dT%H", &at);
    std::strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", &at);
    if (r.headers.at("x-amz-date").substr(0, 11) == day) return serve(r);
    ServerReply reply = error_reply(403, "RequestTimeTooSkewed");
    reply.headers = {{"Date", date}};
    return reply;
  });
  const auto fetcher = make(settings_for(server));
  for (int i = 0; i < 3; ++i) {
    auto object = fetcher->fetch(request_for(url_of(i)));
    ASSERT_TRUE(object.ok()) << object.status().to_string();
  }
  EXPECT_EQ(server.n_requests(), 4) << "learned more than once";
}

TEST(HostileServer, AnOldServerThatClosesIsUnderstoodIfItSaysHowMuch) {
  LoopbackServer server([](const ServerRequest& r) {
    ServerReply reply;
    reply.raw = "HTTP/1.0 200 OK\r\nContent-Length: 1000\r\n\r\n" + object_of(r.target);
    reply.then = Then::kClose;
    return reply;
  });
  const auto fetcher = make(settings_for(server));
  Answers answers(20);
  submit_all(*fetcher, 20, answers);
  answers.wait();
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(answers.at(i).ok()) << answers.at(i).status().to_string();
    EXPECT_EQ(text(*answers.at(i)), object_of(target_of(i)));
  }
  EXPECT_EQ(fetcher->stats().n_retries, 0);
}

TEST(HostileServer, ANameThatDoesNotResolveIsAnOutageAndHoldsNobodyUp) {
  LoopbackServer server([](const ServerRequest& r) { return serve(r); });
  auto settings = settings_for(server);
  settings.storage.endpoint = "http://nowhere.invalid:9000";
  settings.outage_limit_s = 0.05;
  const auto fetcher = make(settings);
  auto object = fetcher->fetch(request_for("s3://b/k"));
  EXPECT_EQ(object.status().reason(), Reason::kOutage) << object.status().to_string();
  EXPECT_THAT(object.status().message(), HasSubstr("FETCH_"));
  Answers answers(1);
  fetcher->submit(request_for("s3://b/k"), answers.slot(0));
  const auto begin = std::chrono::steady_clock::now();
  fetcher->stop();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 1s);
}

TEST(HostileServer, AStoreThatRefusesConnectionsAndComesBackIsReadOn) {
  const auto handler = [](const ServerRequest& r) { return serve(r); };
  auto server = std::make_unique<LoopbackServer>(handler);
  const int port = server->port();
  const auto fetcher = make(settings_for(*server));
  ASSERT_TRUE(fetcher->fetch(request_for("s3://b/first")).ok());
  server.reset();
  Answers answers(10);
  submit_all(*fetcher, 10, answers);
  while (fetcher->stats().n_retries < 20) std::this_thread::yield();
  LoopbackServer again(handler, {.port = port});
  answers.wait();
  EXPECT_EQ(answers.n_ok(), 10);
  EXPECT_TRUE(answers.each_once());
}

}  // namespace
}  // namespace stoker

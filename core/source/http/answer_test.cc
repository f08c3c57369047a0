#include "source/http/answer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace stoker {
namespace {

using ::testing::HasSubstr;
constexpr std::uint64_t kLimit = 1'000'000;

std::string text(const FetchedObject& object) {
  return {reinterpret_cast<const char*>(object.bytes.data()), object.bytes.size()};
}

// Feeds head and body in pieces of `piece` bytes.
Result<FetchedObject> feed(std::vector<std::string> head, const std::string& body, std::size_t piece,
                           std::uint64_t offset = 0, std::optional<std::uint64_t> length = std::nullopt) {
  Answer answer;
  answer.begin(offset, length, {.max_object_bytes = kLimit});
  for (const std::string& line : head) answer.on_header(line + "\r\n");
  for (std::size_t at = 0; at < body.size(); at += piece) {
    if (!answer.on_body(std::string_view(body).substr(at, piece))) break;
  }
  return answer.finish();
}

TEST(Answer, GivesTheSameInPiecesOfAnySize) {
  std::string body;
  for (int i = 0; i < 1000; ++i) body += std::to_string(i);
  const std::string size = std::to_string(body.size());
  for (std::size_t piece : {std::size_t{1}, std::size_t{7}, std::size_t{1000}, body.size()}) {
    EXPECT_EQ(text(*feed({"HTTP/1.1 200 OK", "content-LENGTH:  " + size}, body, piece)), body);
    EXPECT_EQ(text(*feed({"HTTP/1.1 200 OK", "Transfer-Encoding: chunked"}, body, piece)), body);
    EXPECT_EQ(text(*feed({"HTTP/1.1 200 OK", "Content-Length: " + size}, body, piece, 100, 50)), body.substr(100, 50));
    EXPECT_EQ(text(*feed({"HTTP/1.1 200 OK", "Content-Length: " + size}, body, piece, 2000)), body.substr(2000));
    EXPECT_EQ(text(*feed({"HTTP/1.1 200 OK", "Content-Length: " + size}, body, piece, 99'999, 10)), "");
    EXPECT_EQ(text(*feed({"HTTP/1.1 200 OK", "Transfer-Encoding: chunked"}, body, piece, 100, 50)),
              body.substr(100, 50));
    const std::string range = "Content-Range: bytes 100-149/" + size;
    EXPECT_EQ(text(*feed({"HTTP/1.1 206 Partial", range, "Content-Length: 50"}, body.substr(100, 50), piece, 100, 50)),
              body.substr(100, 50));
  }
}

TEST(Answer, AWholeBodyIsHeldAgainstTheStoresChecksum) {
  const std::string digits = "123456789";
  const auto with = [&](std::vector<std::string> lines, std::uint64_t offset = 0) {
    lines.insert(lines.begin(), {"HTTP/1.1 200 OK", "Content-Length: 9"});
    return feed(lines, digits, 4, offset).status().reason();
  };
  const std::string right = "y/Q5Jg==", wrong = "AAAAAA==";
  EXPECT_EQ(with({"x-amz-checksum-crc32: " + right}), Reason::kNone);
  EXPECT_EQ(with({"X-Amz-Checksum-CRC32: " + wrong}), Reason::kFetchChecksum);
  EXPECT_EQ(with({"x-amz-checksum-sha1: " + std::string(27, 'A') + "="}), Reason::kFetchChecksum);
  EXPECT_EQ(with({"x-goog-hash: crc32c=4waSgw==,md5=xxxx"}), Reason::kNone);
  EXPECT_EQ(with({"x-goog-hash: md5=xxxx", "x-goog-hash: crc32c=" + wrong}), Reason::kFetchChecksum);
  EXPECT_EQ(with({"x-amz-checksum-crc32: " + wrong, "x-amz-checksum-crc64nvme: rosUhgp5mIg="}), Reason::kNone)
      << "one is enough, and the cheapest is taken";
  EXPECT_EQ(with({"x-amz-checksum-crc32: " + right + "-3", "x-amz-checksum-crc32c: nonsense"}), Reason::kNone);
  EXPECT_EQ(with({"x-amz-checksum-crc32: " + wrong}, 3), Reason::kNone) << "of a part nothing is known";
  EXPECT_EQ(with({"x-goog-hash: crc32c=" + wrong, "x-goog-stored-content-encoding: gzip"}), Reason::kNone)
      << "Google's is of what it stores, not of what it unpacked on the way";
  EXPECT_EQ(feed({"HTTP/1.1 200 OK", "Transfer-Encoding: chunked", "x-amz-checksum-crc32: " + wrong}, digits, 2)
                .status()
                .reason(),
            Reason::kFetchChecksum);
  EXPECT_EQ(feed({"HTTP/1.1 200 OK", "Content-Length: 0", "x-amz-checksum-crc32: " + wrong}, "", 1).status().reason(),
            Reason::kNone)
      << "of nothing it is AAAAAA==";
}

TEST(Answer, AnInterimAnswerOrARedirectLeavesNothingBehind) {
  auto object = feed({"HTTP/1.1 302 Found", "Content-Length: 7", "ETag: \"old\"", "Retry-After: 5", "",
                      "HTTP/1.1 200 OK", "Content-Length: 2"},
                     "ok", 1);
  ASSERT_TRUE(object.ok());
  EXPECT_EQ(object->etag, "");
  EXPECT_EQ(object->total_bytes, 2U);
}

TEST(Answer, EveryShorterBodyIsAShortBody) {
  for (std::size_t n = 0; n < 20; ++n) {
    EXPECT_EQ(feed({"HTTP/1.1 200 OK", "Content-Length: 20"}, std::string(n, 'x'), 3).status().reason(),
              Reason::kFetchShortBody)
        << n;
  }
}

TEST(Answer, RefusesWhatItCannotCheck) {
  EXPECT_EQ(feed({"HTTP/1.0 200 OK"}, "half a pic", 5).status().reason(), Reason::kFetchServer);
  EXPECT_EQ(feed({"HTTP/1.0 200 OK"}, "", 5).status().reason(), Reason::kFetchServer);
  EXPECT_EQ(feed({"HTTP/1.1 200 OK", "Content-Length: 1000001"}, "x", 1).status().reason(), Reason::kMediaTooLarge);
  EXPECT_EQ(feed({"HTTP/1.1 200 OK", "Content-Length: 18446744073709551615"}, "x", 1).status().reason(),
            Reason::kMediaTooLarge);
  EXPECT_EQ(feed({"HTTP/1.1 200 OK", "Content-Length: -1"}, "x", 1).status().reason(), Reason::kFetchServer);
  for (const char* range : {"bytes 0-4/10", "bytes 5-8/10", "bytes 5-9/*", "bytes 9-5/10", "bytes 5-10/10", "5-9/10",
                            "bytes 5-18446744073709551615/10", ""}) {
    EXPECT_EQ(
        feed({"HTTP/1.1 206 Partial", std::string("Content-Range: ") + range}, "56789", 5, 5, 5).status().reason(),
        Reason::kFetchServer)
        << range;
  }
  const std::string endless(kLimit + 1, 'x');
  EXPECT_EQ(feed({"HTTP/1.1 200 OK", "Transfer-Encoding: chunked"}, endless, 65536).status().reason(),
            Reason::kMediaTooLarge);
}

// "0123456789" broke off behind the fifth byte; what a next answer makes of it.
TEST(Answer, GoesOnWhereAnotherOneEnded) {
  const auto begun = [](const std::string& etag) {
    Answer answer;
    answer.begin(0, std::nullopt, {.max_object_bytes = kLimit});
    for (const std::string& line :
         {std::string("HTTP/1.1 200 OK"), std::string("Content-Length: 10"), "ETag: " + etag}) {
      answer.on_header(line);
    }
    answer.on_body("01234");
    EXPECT_FALSE(answer.finish().ok());
    return answer.take_partial();
  };
  const auto go_on = [&](std::vector<std::string> head, const std::string& body, bool again = false) {
    Answer answer;
    answer.begin(0, std::nullopt, {.max_object_bytes = kLimit}, begun("\"tag\""));
    if (again) {  // a try in between that got no answer
      auto kept = answer.take_partial();
      EXPECT_TRUE(kept && kept->n_filled == 5);
      answer.begin(0, std::nullopt, {.max_object_bytes = kLimit}, std::move(kept));
    }
    for (const std::string& line : head) answer.on_header(line);
    for (const char c : body) {
      if (!answer.on_body(std::string_view(&c, 1))) break;
    }
    return answer.finish();
  };
  const std::string tag = "ETag: \"tag\"";
  for (const bool again : {false, true}) {
    const auto rest = go_on({"HTTP/1.1 206 Partial", "Content-Range: bytes 5-9/10", tag}, "56789", again);
    ASSERT_TRUE(rest.ok()) << rest.status().to_string();
    EXPECT_EQ(text(*rest), "0123456789");
    EXPECT_EQ(rest->total_bytes, 10U);
  }
  EXPECT_EQ(text(*go_on({"HTTP/1.1 200 OK", "Content-Length: 10", tag}, "0123456789")), "0123456789");  // range ignored
  // Anything else is another object, or none: nothing of it may stand behind the first half.
  for (const auto& head :
       std::vector<std::vector<std::string>>{{"HTTP/1.1 206 Partial", "Content-Range: bytes 5-9/10", "ETag: \"new\""},
                                             {"HTTP/1.1 206 Partial", "Content-Range: bytes 5-9/10"},
                                             {"HTTP/1.1 206 Partial", "Content-Range: bytes 4-9/10", tag},
                                             {"HTTP/1.1 206 Partial", "Content-Range: bytes 5-9/11", tag},
                                             {"HTTP/1.1 206 Partial", tag},
                                             {"HTTP/1.1 200 OK", "Content-Length: 11", tag},
                                             {"HTTP/1.1 200 OK", "Transfer-Encoding: chunked", tag},
                                             {"HTTP/1.1 200 OK", "Content-Length: 0", tag}}) {
    EXPECT_EQ(go_on(head, "56789").status().reason(), Reason::kFetchShortBody) << head[1];
  }
  EXPECT_FALSE(begun("").has_value()) << "nothing says whether it is still the same object";
  EXPECT_FALSE(begun("W/\"tag\"").has_value());
}

TEST(Answer, ARangePastTheEndIsEmptyOnlyIfItIsPastTheEnd) {
  auto past = feed({"HTTP/1.1 416 No", "Content-Range: bytes */10"}, "", 1, 10, 5);
  ASSERT_TRUE(past.ok());
  EXPECT_EQ(past->total_bytes, 10U);
  EXPECT_EQ(past->bytes.size(), 0U);
  EXPECT_FALSE(feed({"HTTP/1.1 416 No", "Content-Range: bytes */10"}, "", 1, 9, 1).ok());
  EXPECT_FALSE(feed({"HTTP/1.1 416 No"}, "", 1, 9, 1).ok());
  const auto told = [](const std::string& size) {  // as S3 does
    return "<Error><Code>InvalidRange</Code><ActualObjectSize>" + size + "</ActualObjectSize></Error>";
  };
  EXPECT_EQ(feed({"HTTP/1.1 416 No", "Content-Length: 79"}, told("10"), 3, 10, 5)->total_bytes, 10U);
  for (const char* size : {"11", "x", "", "-1", "99999999999999999999999"}) {
    EXPECT_FALSE(feed({"HTTP/1.1 416 No", "Content-Length: 90"}, told(size), 3, 10, 5).ok()) << size;
  }
}

TEST(Answer, RetryAfterIsBounded) {
  AnswerHead head;
  head.read_line("HTTP/1.1 503 Slow");
  head.read_line("Retry-After: 99999999999");
  EXPECT_EQ(head.retry_after, Nanos(std::chrono::seconds(60)));
  head.read_line("HTTP/1.1 503 Slow");
  head.read_line("Retry-After: Fri, 31 Dec 1999 23:59:59 GMT");
  EXPECT_FALSE(head.retry_after);
}

}  // namespace
}  // namespace stoker

#include "manifest/json.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <simdjson.h>

#include <string>
#include <vector>

#include "base/rng.h"

namespace stoker {
namespace {

Status parse(std::string_view text, const JsonOptions& options = {}) {
  JsonDocument document;
  return document.parse(text, options);
}

TEST(JsonDocument, TakesWhatTheStandardTakes) {
  for (const std::string_view text : {"null",
                                      " true ",
                                      "false",
                                      "0",
                                      "-0",
                                      "-1.5e+10",
                                      "1E5",
                                      "123456789012345678901234567890",
                                      "1e999",
                                      "\"\"",
                                      "\"a\\u00e9\\n\\/\"",
                                      "[]",
                                      "[ ]",
                                      "[1,2]",
                                      "{}",
                                      "{ }",
                                      "{\"a\":1,\"a\":2}",
                                      "\t{\"a\" : [ {\"b\" : null } ] }\r\n",
                                      "\"\\ud83d\\ude00\"",
                                      "\"\\ud83d\""}) {
    EXPECT_TRUE(parse(text).ok()) << text << ": " << parse(text).to_string();
  }
}

TEST(JsonDocument, RefusesTheRestAndSaysWhere) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "column 1, byte 0"},
      {"   ", "column 4, byte 3"},
      {"{\"a\":1,}", "column 8, byte 7"},
      {"[1,]", "column 4, byte 3"},
      {"[1 2]", "column 4, byte 3"},
      {"{\"a\" 1}", "column 6, byte 5"},
      {"{a:1}", "column 2, byte 1"},
      {"{\"a\":1", "column 7, byte 6"},
      {"[1", "column 3, byte 2"},
      {"\"abc", "column 1, byte 0"},
      {"[\"\xC3\xA9\", x]", "column 7, byte 7"},  // a column is a character
      {"01", "column 2, byte 1"},
      {"1.", "column 3, byte 2"},
      {"1e", "column 3, byte 2"},
      {"-", "column 2, byte 1"},
      {".5", "column 1, byte 0"},
      {"+1", "column 1, byte 0"},
      {"tru", "column 1, byte 0"},
      {"Nope", "column 1, byte 0"},
      {"\"\\x\"", "column 2, byte 1"},
      {"\"\\u12g4\"", "column 2, byte 1"},
      {"\"\\u12", "column 2, byte 1"},
      {"\"\\", "column 2, byte 1"},
      {"\"a\tb\"", "column 3, byte 2"},
      {std::string("\"a\0b\"", 5), "column 3, byte 2"},
      {"{} {}", "column 4, byte 3"},
      {"'a'", "column 1, byte 0"},
      {"// x", "column 1, byte 0"},
  };
  for (const auto& [text, where] : cases) {
    const Status status = parse(text);
    EXPECT_EQ(status.reason(), Reason::kJsonSyntax) << text;
    EXPECT_TRUE(status.message().starts_with(where)) << text << ": " << status.message();
  }
}

TEST(JsonDocument, NamesNonfiniteNumbers) {
  for (const std::string token : {"NaN", "Infinity", "-Infinity"}) {
    const std::string text = "{\"score\": " + token + "}";
    const Status status = parse(text);
    EXPECT_EQ(status.reason(), Reason::kJsonNonfinite);
    EXPECT_NE(status.message().find("column 11"), std::string::npos) << status.message();
    EXPECT_NE(status.message().find(token), std::string::npos) << status.message();
    JsonOptions lenient;
    lenient.nonfinite_is_null = true;
    JsonDocument document;
    ASSERT_TRUE(document.parse(text, lenient).ok());
    EXPECT_TRUE(document.root().first().next().is_null());
  }
}

TEST(JsonDocument, RefusesBytesThatAreNotUtf8) {
  for (const std::string_view bad :
       {"\x80", "\xC0\xAF", "\xC3", "\xED\xA0\xBD", "\xE2\x28\xA1", "\xF4\x90\x80\x80", "\xF0\x80\x80\x80", "\xFF"}) {
    const std::string text = fmt::format("\"\xC3\xA9{}\"", bad);
    const Status status = parse(text);
    EXPECT_EQ(status.reason(), Reason::kJsonUtf8) << bad;
    EXPECT_TRUE(status.message().starts_with("column 3, byte 3")) << status.message();
  }
}

TEST(JsonDocument, DepthIsBounded) {
  const std::string fits = std::string(200, '[') + std::string(200, ']');
  EXPECT_TRUE(parse(fits).ok());
  EXPECT_EQ(parse(std::string(201, '[') + std::string(201, ']')).reason(), Reason::kJsonSyntax);
  EXPECT_EQ(parse(std::string(1'000'000, '[')).reason(), Reason::kJsonSyntax);
  EXPECT_EQ(parse(std::string(1'000'000, '{')).reason(), Reason::kJsonSyntax);
}

TEST(JsonView, ResolvesEscapes) {
  const auto string = [](std::string_view text, std::uint32_t* n_replaced = nullptr) {
    JsonDocument document;
    EXPECT_TRUE(document.parse(text).ok()) << text;
    return document.root().string(n_replaced);
  };
  EXPECT_EQ(string(R"("a\"\\\/\b\f\n\r\tz")"), "a\"\\/\b\f\n\r\tz");
  EXPECT_EQ(string(R"("\u0041\u00e9\u20AC\ud83d\ude00")"), "A\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80");
  std::uint32_t n = 0;
  EXPECT_EQ(string(R"("\ud83d")", &n), "\xEF\xBF\xBD");
  EXPECT_EQ(string(R"("\ude00x")", &n), "\xEF\xBF\xBDx");
  EXPECT_EQ(string(R"("\ud83d\ud83d\ude00")", &n), "\xEF\xBF\xBD\xF0\x9F\x98\x80");
  EXPECT_EQ(string(R"("\ud83d\n")", &n), "\xEF\xBF\xBD\n");
  EXPECT_EQ(n, 4U);
}

TEST(JsonView, WalksContainers) {
  JsonDocument document;
  ASSERT_TRUE(document.parse(R"([1, [2, [3]], {"a": [4, 5], "\u0062": {}}, "x"])").ok());
  const JsonView root = document.root();
  EXPECT_EQ(root.size(), 4U);
  const JsonView object = root.first().next().next();
  EXPECT_EQ(object.size(), 2U);
  EXPECT_TRUE(object.first().string_is("a"));
  EXPECT_EQ(object.first().next().size(), 2U);
  EXPECT_TRUE(object.first().next().next().string_is("b"));
  EXPECT_EQ(object.next().raw(), "x");
  EXPECT_FALSE(object.next().next());
  EXPECT_FALSE(document.root().next());
}

// simdjson is the oracle wherever the two promise the same: it refuses what is beyond double or 64 bits, and half
// surrogate pairs.
TEST(JsonDocument, AgreesWithSimdjsonOnDamagedText) {
  const std::vector<std::string> seeds = {
      R"({"messages": [{"role": "user", "content": "a\n\u00e9 <image>"}, {"role": "assistant", "content": ["x", 1.5e3, -2, true, null]}]})",
      R"([[], {}, "", "\\", {"a": {"b": [1, 2, {"c": "d"}]}}, 0, 10, -1.25E-2, false])"};
  constexpr std::string_view kNoise = "{}[]:,\"\\0123456789eE+-.tfn \tu/\x80\xC3\xA9";
  Rng rng(1);
  simdjson::dom::parser oracle;
  int n_ok = 0;
  int n_bad = 0;
  for (int round = 0; round < 200'000; ++round) {
    std::string text = seeds[rng.next() % seeds.size()];
    const int n_edits = 1 + static_cast<int>(rng.next() % 3);
    for (int i = 0; i < n_edits; ++i) {
      const std::size_t at = rng.next() % text.size();
      const char c = kNoise[rng.next() % kNoise.size()];
      switch (rng.next() % 3) {
        case 0:
          text[at] = c;
          break;
        case 1:
          text.erase(at, 1);
          break;
        default:
          text.insert(at, 1, c);
      }
      if (text.empty()) text.push_back(' ');
    }
    const simdjson::padded_string padded(text);
    const auto error = oracle.parse(padded).error();
    const Status ours = parse(text);
    if (error == simdjson::NUMBER_ERROR && ours.ok()) continue;  // beyond double or 64 bits
    if (error == simdjson::STRING_ERROR && ours.ok() && text.find("\\u") != std::string::npos) continue;
    ASSERT_EQ(ours.ok(), error == simdjson::SUCCESS) << text << "\n" << ours.to_string() << "\n" << error;
    ++(ours.ok() ? n_ok : n_bad);
  }
  EXPECT_GT(n_ok, 1000);
  EXPECT_GT(n_bad, 1000);
}

}  // namespace
}  // namespace stoker

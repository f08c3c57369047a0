#include "manifest/json_text.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace stoker {
namespace {

// Expected texts are what CPython 3.11 prints; tests/test_manifest_json_text.py compares with the running Python over
// many more.
TEST(JsonText, IsPythons) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"( {"b":1,"a":[ ],"c":{ },"d":[1,2 ,{"e":null}]} )", R"({"b": 1, "a": [], "c": {}, "d": [1, 2, {"e": null}]})"},
      {"[true,false,null]", "[true, false, null]"},
      {R"("\u00e9\ud83d\ude00 </tag> & ' \u007f")", "\"\xC3\xA9\xF0\x9F\x98\x80 </tag> & ' \x7F\""},
      {R"("\"\\\/\b\f\n\r\t\u0000\u001f")", R"("\"\\/\b\f\n\r\t\u0000\u001f")"},
      {"123456789012345678901234567890", "123456789012345678901234567890"},
      {"-0", "0"},
      {"-0.0", "-0.0"},
      {"1.0", "1.0"},
      {"100", "100"},
      {"1e2", "100.0"},
      {"1E-4", "0.0001"},
      {"0.00001", "1e-05"},
      {"123456789012345.678", "123456789012345.67"},
      {"1e15", "1000000000000000.0"},
      {"1e16", "1e+16"},
      {"1.5e16", "1.5e+16"},
      {"9007199254740993.0", "9007199254740992.0"},
      {"1e100", "1e+100"},
      {"1.7976931348623157e308", "1.7976931348623157e+308"},
      {"5e-324", "5e-324"},
      {"1e-400", "0.0"},
      {"-1e-99999999999999999999", "-0.0"},
      {"0e99999999999999999999", "0.0"},
      {"0.1", "0.1"},
      {"0.30000000000000004", "0.30000000000000004"},
      {"2.50", "2.5"},
  };
  for (const auto& [text, expected] : cases) {
    const auto out = json_text(text);
    ASSERT_TRUE(out.ok()) << text << ": " << out.status().to_string();
    EXPECT_EQ(*out, expected) << text;
  }
}

TEST(JsonText, RefusesWhatHasNoText) {
  EXPECT_EQ(json_text("[NaN]").status().reason(), Reason::kJsonNonfinite);
  EXPECT_EQ(json_text("1e400").status().reason(), Reason::kJsonNonfinite);
  EXPECT_EQ(json_text("-0.00001e9999999999999999999999").status().reason(), Reason::kJsonNonfinite);
  EXPECT_EQ(json_text("{\"a\":1,\"\\u0061\":2}").status().reason(), Reason::kJsonDuplicateKey);
  EXPECT_EQ(json_text("{").status().reason(), Reason::kJsonSyntax);
}

}  // namespace
}  // namespace stoker

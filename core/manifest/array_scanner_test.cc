#include "manifest/array_scanner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"

namespace stoker {
namespace {

struct Scanned {
  std::string lines;
  std::vector<RowLocation> at;
  Status status;
};

Scanned scan_in_pieces(std::string_view text, std::size_t n_piece) {
  Scanned out;
  ArrayScanner scanner(out.lines, out.at);
  for (std::size_t at = 0; at < text.size() && out.status.ok(); at += n_piece) {
    out.status = scanner.feed(text.substr(at, n_piece));
  }
  if (out.status.ok()) out.status = scanner.finish();
  return out;
}

TEST(ArrayScanner, CutsElementsAndKnowsWhereTheyStand) {
  const std::string text = "\xEF\xBB\xBF [\r\n  {\"a\": \"],[}\\\"\", \"b\":\n [1, {}]} ,\n3,\"x\"\n]\n";
  for (const std::size_t n_piece : {1U, 2U, 3U, 7U, 1000U}) {
    const Scanned got = scan_in_pieces(text, n_piece);
    ASSERT_TRUE(got.status.ok()) << got.status.message();
    EXPECT_EQ(got.lines, "{\"a\": \"],[}\\\"\", \"b\":  [1, {}]} \n3\n\"x\" \n");
    ASSERT_EQ(got.at.size(), 3U);
    const std::vector<std::pair<std::string, std::uint64_t>> wanted = {
        {"{\"a\": \"],[}\\\"\", \"b\":\n [1, {}]}", 2}, {"3", 4}, {"\"x\"", 4}};
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(text.substr(got.at[i].offset, got.at[i].n_bytes), wanted[i].first);
      EXPECT_EQ(got.at[i].line, wanted[i].second);
    }
  }
}

TEST(ArrayScanner, EmptyLists) {
  for (const char* text : {"[]", " [ \n ] ", "\xEF\xBB\xBF[]\n"}) {
    const Scanned got = scan_in_pieces(text, 1);
    EXPECT_TRUE(got.status.ok()) << text;
    EXPECT_TRUE(got.at.empty());
  }
}

TEST(ArrayScanner, ALineEndInAStringStaysRefused) {
  const Scanned got = scan_in_pieces("[\"a\nb\", 1]", 4);
  ASSERT_TRUE(got.status.ok());
  EXPECT_EQ(got.lines,
            "\"a\x01"
            "b\"\n1\n");
}

TEST(ArrayScanner, RefusesWhatIsNoListAndSaysWhere) {
  const std::vector<std::pair<std::string, std::string>> cases = {{"[1,,2]", "line 1, byte 3"},
                                                                  {"[1,\n]", "line 2, byte 4"},
                                                                  {"[1] 2", "line 1, byte 4"},
                                                                  {"[1", "not closed"},
                                                                  {"[{\"a\": \"b}, 2]", "line 1, byte 1"},
                                                                  {"[", "not closed"},
                                                                  {"{}", "begin here"},
                                                                  {"[1}", "line 1, byte 2"},
                                                                  {"[,]", "line 1, byte 1"}};
  for (const auto& [text, words] : cases) {
    const Scanned got = scan_in_pieces(text, 2);
    EXPECT_EQ(got.status.reason(), Reason::kManifest) << text;
    EXPECT_NE(got.status.message().find(words), std::string::npos) << text << ": " << got.status.message();
  }
}

// However it is cut, the same comes out; and as many lines as elements.
TEST(ArrayScanner, PiecesDoNotMatter) {
  Rng rng(5);
  constexpr std::string_view kAlphabet = "[]{},:\"\\ \n\r1a";
  int n_ok = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string text = "[";
    for (std::uint64_t i = rng.next() % 12; i > 0; --i) text += kAlphabet[rng.next() % kAlphabet.size()];
    text += "]";
    const Scanned whole = scan_in_pieces(text, text.size());
    const Scanned cut = scan_in_pieces(text, 1 + rng.next() % 3);
    EXPECT_EQ(whole.status.message(), cut.status.message());
    EXPECT_EQ(whole.lines, cut.lines);
    if (!whole.status.ok()) continue;
    ++n_ok;
    EXPECT_EQ(static_cast<std::size_t>(std::count(whole.lines.begin(), whole.lines.end(), '\n')), whole.at.size());
  }
  EXPECT_GT(n_ok, 1000);
}

TEST(ArrayScanner, KnowsALongListFromARow) {
  EXPECT_TRUE(ArrayScanner::begins_list("[{"));
  EXPECT_TRUE(ArrayScanner::begins_list("\xEF\xBB\xBF \n\t[{"));
  for (const char* text : {"", "  ", "{\"a\": []}", "\xEF\xBB\xBF{", "x["})
    EXPECT_FALSE(ArrayScanner::begins_list(text)) << text;
}

}  // namespace
}  // namespace stoker

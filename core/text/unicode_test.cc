#include "text/unicode.h"

#include <gtest/gtest.h>
#include <simdjson.h>

#include <string>
#include <vector>

#include "text/nfc.h"
#include "text/utf8.h"

namespace stoker::text {
namespace {

constexpr char32_t kEnd = 0x110000;

std::string utf8(std::u32string_view text) {
  std::string out;
  for (const char32_t cp : text) {
    const auto put = [&out](char32_t b) { out.push_back(static_cast<char>(b)); };
    if (cp < 0x80) {
      put(cp);
    } else if (cp < 0x800) {
      put(0xC0 | cp >> 6), put(0x80 | (cp & 63));
    } else if (cp < 0x10000) {
      put(0xE0 | cp >> 12), put(0x80 | (cp >> 6 & 63)), put(0x80 | (cp & 63));
    } else {
      put(0xF0 | cp >> 18), put(0x80 | (cp >> 12 & 63)), put(0x80 | (cp >> 6 & 63)), put(0x80 | (cp & 63));
    }
  }
  return out;
}

std::string nfc(std::u32string_view text) {
  std::string out;
  Nfc().append(utf8(text), out);
  return out;
}

class Golden {
 public:
  Golden() { data_ = parser_.load(std::string(STOKER_TESTDATA) + "/goldens/tokenizer_unicode.json")["data"].value(); }
  std::vector<bool> members(const char* name) const {
    std::vector<bool> is_member(kEnd);
    for (const auto range : data_[name].get_array()) {
      for (std::uint64_t cp = range.at(0).get_uint64(); cp <= range.at(1).get_uint64(); ++cp) is_member[cp] = true;
    }
    return is_member;
  }
  simdjson::dom::element data() const { return data_; }

 private:
  simdjson::dom::parser parser_;
  simdjson::dom::element data_;
};

TEST(Unicode, ClassesAreTheGoldensForAllCodePoints) {
  const Golden golden;
  const auto letters = golden.members("letter"), numbers = golden.members("number"),
             spaces = golden.members("white_space");
  for (char32_t cp = 0; cp < kEnd; ++cp) {
    const auto expected = letters[cp]   ? unicode::Class::kLetter
                          : numbers[cp] ? unicode::Class::kNumber
                          : spaces[cp]  ? unicode::Class::kSpace
                                        : unicode::Class::kOther;
    ASSERT_EQ(unicode::class_of(cp), expected) << std::hex << static_cast<unsigned>(cp);
  }
}

TEST(Unicode, NfcChangesTheGoldensCharactersAndNoOther) {
  const Golden golden;
  std::vector<std::string> expected(kEnd);
  for (const auto row : golden.data()["changed_alone_by_nfc"].get_array()) {
    std::u32string to;
    for (const auto cp : row.at(1).get_array()) to.push_back(static_cast<char32_t>(cp.get_uint64().value()));
    expected[row.at(0).get_uint64()] = utf8(to);
  }
  for (char32_t cp = 0; cp < kEnd; ++cp) {
    if (cp >= 0xD800 && cp < 0xE000) continue;
    const std::string alone = utf8({&cp, 1});
    const std::string& wanted = expected[cp].empty() ? alone : expected[cp];
    ASSERT_EQ(nfc({&cp, 1}), wanted) << std::hex << static_cast<unsigned>(cp);
    if (wanted != alone) {
      ASSERT_FALSE(Nfc::is_quickly(alone)) << std::hex << static_cast<unsigned>(cp);
    }
  }
}

TEST(Unicode, OnlyTheGoldensMarksAreReordered) {
  // A mark of class 240 in front: whatever has a lower class must move before it.
  const Golden golden;
  const auto moves = golden.members("mark_that_nfc_reorders");
  std::vector<bool> changes_alone(kEnd);
  for (const auto row : golden.data()["changed_alone_by_nfc"].get_array()) {
    changes_alone[row.at(0).get_uint64()] = true;
  }
  for (char32_t cp = 0x300; cp < kEnd; ++cp) {
    const bool is_surrogate = cp >= 0xD800 && cp < 0xE000;
    if (is_surrogate || cp == 0x345 || changes_alone[cp]) continue;
    const std::u32string text = {U'x', 0x345, cp};
    const bool was_moved = !nfc(text).starts_with(utf8({text.data(), 2}));
    ASSERT_EQ(was_moved, moves[cp]) << std::hex << static_cast<unsigned>(cp);
    if (was_moved) {
      ASSERT_FALSE(Nfc::is_quickly(utf8(text))) << std::hex << static_cast<unsigned>(cp);
    }
  }
}

TEST(Unicode, NfcComposes) {
  EXPECT_EQ(nfc(U"e\u0301"), utf8(U"\u00E9"));
  EXPECT_EQ(nfc(U"a\u0302\u0323"), utf8(U"\u1EAD"));                       // ordered first, then composed twice
  EXPECT_EQ(nfc(U"\u1112\u1161\u11AB"), utf8(U"\uD55C"));                  // Hangul
  EXPECT_EQ(nfc(U"\uAC00\u11A7"), utf8(U"\uAC00\u11A7"));                  // not a trailing consonant
  EXPECT_EQ(nfc(U"a\u0327\u0301"), utf8(U"\u00E1\u0327"));                 // a lower class in between does not block
  EXPECT_EQ(nfc(U"a\u0301\u0301"), utf8(U"\u00E1\u0301"));                 // the same class does
  EXPECT_EQ(nfc(U"\u0301a\u0301"), utf8(U"\u0301\u00E1"));                 // nothing before the first starter
  EXPECT_EQ(nfc(U"\U00011935\U00011930"), utf8(U"\U00011935\U00011930"));  // composes since Unicode 13 only
  EXPECT_EQ(nfc(U"\u0915\u093C"), utf8(U"\u0915\u093C"));                  // excluded from composition
}

TEST(Utf8, RepairLeavesGoodTextAlone) {
  std::string out;
  std::vector<ByteSpan> spans = {{1, 3}};
  const std::string text = utf8(U"a\u00E9\u56FE\U0001F600z");
  EXPECT_EQ(repair_utf8(text, out, spans), 0U);
  EXPECT_EQ(out, text);
  EXPECT_EQ(spans[0].begin, 1U);
  EXPECT_EQ(spans[0].end, 3U);
}

TEST(Utf8, EveryIllFormedSequenceIsOneReplacement) {
  const std::string fffd = "\xEF\xBF\xBD";
  const struct {
    std::string from, to;
    std::size_t n;
  } kCases[] = {
      {"\xFF", fffd, 1},
      {"\xC0\xAF", fffd + fffd, 2},
      {"\xE0\x80\x80", fffd + fffd + fffd, 3},
      {"\xED\xA0\xBD", fffd, 1},                     // a surrogate half
      {"\xED\xA0\xBD\xED\xB8\x80", fffd + fffd, 2},  // a pair of them
      {"\xF0\x9F\x98", fffd, 1},                     // cut off
      {"\xF0\x9F\x98"
       "a",
       fffd + "a", 1},
      {"\xF4\x90\x80\x80", fffd + fffd + fffd + fffd, 4},  // above the last code point
      {"\xE5\x9B", fffd, 1},
      {"\x80", fffd, 1},
  };
  for (const auto& c : kCases) {
    std::string out;
    std::vector<ByteSpan> spans;
    EXPECT_FALSE(is_valid_utf8(c.from));
    EXPECT_EQ(repair_utf8(c.from, out, spans), c.n);
    EXPECT_EQ(out, c.to);
    EXPECT_TRUE(is_valid_utf8(out));
  }
}

TEST(Utf8, RepairMovesSpans) {
  std::string out;
  std::vector<ByteSpan> spans = {{0, 1}, {1, 4}, {5, 5}};
  repair_utf8(
      "\xFF\xED\xA0\xBD"
      "a",
      out, spans);  // 1, 3 and 1 bytes become 3, 3 and 1
  EXPECT_EQ(spans[0].end, 3U);
  EXPECT_EQ(spans[1].begin, 3U);
  EXPECT_EQ(spans[1].end, 6U);
  EXPECT_EQ(spans[2].begin, 7U);
}

}  // namespace
}  // namespace stoker::text

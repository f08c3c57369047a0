#include "manifest/row.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/rng.h"

namespace stoker {
namespace {

Sample parsed(std::string_view line, RowNotes* notes = nullptr) {
  auto sample = parse_row(line, {}, notes);
  EXPECT_TRUE(sample.ok()) << line << ": " << sample.status().to_string();
  return sample.ok() ? *std::move(sample) : Sample{};
}

Status refused(std::string_view line) {
  auto sample = parse_row(line);
  EXPECT_FALSE(sample.ok()) << line;
  return sample.ok() ? Status() : std::move(sample).status();
}

// A sample in one line: "user+[text][0:a.png 3x4]" is a user turn with content, a text and the image a.png of height 3
// and width 4.
std::string summary(const Sample& sample) {
  constexpr std::array<const char*, 4> kRoles = {"system", "user", "assistant", "tool"};
  std::string out;
  for (const Turn& turn : sample.turns) {
    out += fmt::format("{}{}{}", out.empty() ? "" : " ", kRoles.at(static_cast<std::size_t>(turn.role)),
                       turn.has_content ? "+" : "-");
    for (const Part& part : turn.parts) {
      if (part.kind == Part::Kind::kText) {
        out += fmt::format("[{}]", part.text);
        continue;
      }
      const MediaRef& media = sample.media.at(part.media);
      out += fmt::format("[{}:{}", part.media, media.reference);
      if (media.height_px > 0) out += fmt::format(" {}x{}", media.height_px, media.width_px);
      out += "]";
    }
    for (const ToolCall& call : turn.tool_calls) out += fmt::format("({} {})", call.name, call.arguments);
  }
  for (const std::string& tool : sample.tools) out += fmt::format(" tool:{}", tool);
  return out;
}

std::string of(std::string_view line) { return summary(parsed(line)); }

TEST(ParseRow, BothFormsGiveTheSame) {
  const std::string expected = "user+[0:a.png][\nwhat?] assistant+[that]";
  EXPECT_EQ(
      of(R"({"conversations": [{"from": "human", "value": "<image>\nwhat?"}, {"from": "gpt", "value": "that"}], "image": "a.png"})"),
      expected);
  EXPECT_EQ(
      of(R"({"messages": [{"role": "user", "content": "<image>\nwhat?"}, {"role": "assistant", "content": "that"}], "images": ["a.png"]})"),
      expected);
  EXPECT_EQ(
      of(R"({"messages": [{"role": "user", "content": [{"type": "image", "image": "a.png"}, {"type": "text", "text": "\nwhat?"}]},
                                {"role": "assistant", "content": [{"type": "text", "text": "that"}]}]})"),
      expected);
}

TEST(ParseRow, MarksTakeImagesInOrderAndTextStaysAsItIs) {
  EXPECT_EQ(
      of(R"({"messages": [{"role": "user", "content": " <image> and <image>\n"}, {"role": "assistant", "content": "<image>ok"}],
                   "images": ["a", "b", "c"]})"),
      "user+[ ][0:a][ and ][1:b][\n] assistant+[2:c][ok]");
}

TEST(ParseRow, PartsTextIsNeverAPlaceholder) {
  EXPECT_EQ(of(R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "say <image>"}]}]})"),
            "user+[say <image>]");
  EXPECT_EQ(
      of(R"({"messages": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "<image>"}, {"type": "image"}]}],
                   "images": ["a", "b"]})"),
      "user+[0:a][<image>][1:b]");
}

TEST(ParseRow, OwnReferencesDoNotTakeFromTheRow) {
  EXPECT_EQ(of(R"({"messages": [{"role": "user", "content": [{"type": "image", "image": "own"}, {"type": "image"}]},
                                {"role": "user", "content": "<image>x"}], "images": ["a", "b"]})"),
            "user+[0:own][1:a] user+[2:b][x]");
}

TEST(ParseRow, ReferencesInEveryDress) {
  const auto part = [](const std::string& p) {
    return of(R"({"messages": [{"role": "user", "content": [)" + p + "]}]}");
  };
  EXPECT_EQ(part(R"({"type": "image_url", "image_url": {"url": "a"}})"), "user+[0:a]");
  EXPECT_EQ(part(R"({"type": "image_url", "image_url": "a"})"), "user+[0:a]");
  EXPECT_EQ(part(R"({"type": "image", "url": "a"})"), "user+[0:a]");
  EXPECT_EQ(part(R"({"type": "image", "path": "a"})"), "user+[0:a]");
  EXPECT_EQ(part(R"({"image": "a"})"), "user+[0:a]");
  EXPECT_EQ(part(R"({"text": "hi"})"), "user+[hi]");
  EXPECT_EQ(part(R"({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}})"),
            "user+[0:data:image/png;base64,QUJD]");
  EXPECT_EQ(part(R"({"type": "image", "source": {"type": "url", "url": "a"}})"), "user+[0:a]");
  EXPECT_EQ(part(R"({"type": "image", "image": "file:///x/a%20b.png"})"), "user+[0:file:///x/a%20b.png]");
}

TEST(ParseRow, Sizes) {
  const auto row = [](const std::string& rest) {
    return of(R"({"messages": [{"role": "user", "content": "<image>"}], )" + rest + "}");
  };
  EXPECT_EQ(row(R"("image": "a", "width": 4, "height": 3)"), "user+[0:a 3x4]");
  EXPECT_EQ(row(R"("images": ["a"], "width": [4], "height": [3.0])"), "user+[0:a 3x4]");
  EXPECT_EQ(row(R"("images": [{"path": "a", "width": 4, "height": 3}])"), "user+[0:a 3x4]");
  EXPECT_EQ(row(R"("image": {"url": "a", "width": 4, "height": 3}, "width": 9, "height": 9)"), "user+[0:a 3x4]");
  EXPECT_EQ(row(R"("image": "a", "width": 4)"), "user+[0:a]");
  EXPECT_EQ(row(R"("image": "a", "width": -1, "height": 0)"), "user+[0:a]");
  EXPECT_EQ(
      of(R"({"messages": [{"role": "user", "content": [{"type": "image", "image": "a", "width": 4, "height": 3}]}]})"),
      "user+[0:a 3x4]");
  EXPECT_EQ(
      of(R"({"messages": [{"role": "user", "content": "<image><image>"}], "images": ["a", "b"], "width": [4, null], "height": [3, 5]})"),
      "user+[0:a 3x4][1:b]");
  EXPECT_EQ(
      of(R"({"messages": [{"role": "user", "content": "<image><image>"}], "images": ["a", "b"], "width": 4, "height": 3})"),
      "user+[0:a][1:b]");
  EXPECT_EQ(of(R"({"messages": [{"role": "user", "content": "x"}], "width": "12 cm", "height": {}})"), "user+[x]");
  for (const std::string bad :
       {R"("width": "4", "height": 3)", R"("width": 4.5, "height": 3)", R"("width": 1e99, "height": 3)",
        R"("width": [4, 5], "height": [3, 3])", R"("width": 4, "height": [3])"}) {
    EXPECT_EQ(refused(R"({"messages": [{"role": "user", "content": "<image>"}], "image": "a", )" + bad + "}").reason(),
              Reason::kRowSchema)
        << bad;
  }
}

TEST(ParseRow, RolesAndTheirAliases) {
  EXPECT_EQ(
      of(R"({"conversations": [{"from": "system", "value": "s"}, {"from": "human", "value": "h"}, {"from": "gpt", "value": "g"},
                   {"from": "observation", "value": "t"}, {"from": "user", "value": "u"}, {"from": "assistant", "value": "a"}]})"),
      "system+[s] user+[h] assistant+[g] tool+[t] user+[u] assistant+[a]");
  const Status status = refused(R"({"messages": [{"role": "critic", "content": "x"}]})");
  EXPECT_EQ(status.reason(), Reason::kRoleUnknown);
  EXPECT_NE(status.message().find("critic"), std::string::npos);
}

TEST(ParseRow, HasContentIsJinjasTruth) {
  const auto turn = [](const std::string& content) { return of(R"({"messages": [{"role": "user")" + content + "}]}"); };
  EXPECT_EQ(turn(""), "user-");
  EXPECT_EQ(turn(R"(, "content": null)"), "user-");
  EXPECT_EQ(turn(R"(, "content": "")"), "user-");
  EXPECT_EQ(turn(R"(, "content": [])"), "user-");
  EXPECT_EQ(turn(R"(, "content": [{"type": "text", "text": ""}])"), "user+[]");
}

TEST(ParseRow, NullIsAbsent) {
  EXPECT_EQ(
      of(R"({"messages": [{"role": "user", "content": [{"type": "image", "image": "a.png", "text": null, "video": null},
                   {"type": "text", "text": "hi", "image": null}], "tool_calls": null, "from": null}], "conversations": null, "images": null, "tools": null})"),
      "user+[0:a.png][hi]");
}

TEST(ParseRow, ToolsAndCalls) {
  EXPECT_EQ(of(R"({"tools": [{"type":"function","function":{"name":"f"}}], "messages": [
                   {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"x":1.0}}}, {"name": "g", "arguments": "{\"y\":2}"}]},
                   {"role": "tool", "content": "done"}]})"),
            R"(assistant-(f {"x": 1.0})(g {"y":2}) tool+[done] tool:{"type": "function", "function": {"name": "f"}})");
  EXPECT_EQ(of(R"({"tools": "[{\"name\":\"f\"}]", "messages": [{"role": "user", "content": "x"}]})"),
            R"(user+[x] tool:{"name": "f"})");
  EXPECT_EQ(of(R"({"tools": "", "messages": [{"role": "user", "content": "x"}]})"), "user+[x]");
  for (const std::string bad :
       {R"([{"name": "f"}])", R"([{"arguments": {}}])", R"([{"name": 3, "arguments": {}}])", R"(["f"])", R"({})"}) {
    EXPECT_EQ(refused(R"({"messages": [{"role": "assistant", "tool_calls": )" + bad + "}]}").reason(),
              Reason::kRowSchema)
        << bad;
  }
  EXPECT_EQ(refused(R"({"messages": [{"role": "user", "tool_calls": [{"name": "f", "arguments": {}}]}]})").reason(),
            Reason::kRowSchema);
  EXPECT_EQ(refused(R"({"tools": [{"a": 1, "a": 2}], "messages": [{"role": "user", "content": "x"}]})").reason(),
            Reason::kJsonDuplicateKey);
}

TEST(ParseRow, RefusesAndSaysWhy) {
  const std::vector<std::tuple<std::string, Reason, std::string>> cases = {
      {R"({"messages": [{"role": "user", "content": "<image>x"}], "images": ["a", "b"]})", Reason::kMediaCount,
       "placeholders 1, images 2"},
      {R"({"messages": [{"role": "user", "content": "<image><image>"}], "images": ["a"]})", Reason::kMediaCount,
       "placeholders 2, images 1"},
      {R"({"messages": [{"role": "user", "content": [{"type": "image"}]}]})", Reason::kMediaCount,
       "placeholders 1, images 0"},
      {R"({"messages": [{"role": "user", "content": "x"}], "conversations": []})", Reason::kRowAmbiguous,
       "conversations"},
      {R"({"messages": [{"role": "user", "from": "human"}]})", Reason::kRowAmbiguous, "from"},
      {R"({"messages": [{"role": "user", "content": "x"}], "image": "a", "images": ["a"]})", Reason::kRowAmbiguous,
       "images"},
      {R"({"dialog": [], "id": 3})", Reason::kRowSchema, "dialog, id"},
      {R"({})", Reason::kRowSchema, "none"},
      {R"([])", Reason::kRowSchema, "a list"},
      {R"({"messages": []})", Reason::kRowSchema, "empty"},
      {R"({"messages": "x"})", Reason::kRowSchema, "a string"},
      {R"({"messages": ["x"]})", Reason::kRowSchema, "a string"},
      {R"({"messages": [{"content": "x"}]})", Reason::kRowSchema, "role"},
      {R"({"messages": [{"role": 3}]})", Reason::kRowSchema, "a number"},
      {R"({"messages": [{"role": "user", "content": 3}]})", Reason::kRowSchema, "a number"},
      {R"({"messages": [{"role": "user", "content": ["x"]}]})", Reason::kRowSchema, "a string"},
      {R"({"messages": [{"role": "user", "content": [{}]}]})", Reason::kRowSchema, "type"},
      {R"({"messages": [{"role": "user", "content": [{"type": "text"}]}]})", Reason::kRowSchema, "text"},
      {R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "image": "a"}]}]})",
       Reason::kRowSchema, "media"},
      {R"({"messages": [{"role": "user", "content": [{"type": "image", "image": 3}]}]})", Reason::kRowSchema,
       "a number"},
      {R"({"messages": [{"role": "user", "content": [{"type": "audio", "audio": "a"}]}]})", Reason::kPartType,
       "'audio'"},
      {R"({"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]})", Reason::kPartType, "'tool_use'"},
      {R"({"messages": [{"role": "user", "content": [{"type": "video", "video": "a"}]}]})", Reason::kMediaUnsupported,
       "video"},
      {R"({"messages": [{"role": "user", "content": "<video>"}], "videos": ["a"]})", Reason::kMediaUnsupported,
       "videos"},
      {R"({"messages": [{"role": "user", "content": "x"}], "audio": "a"})", Reason::kMediaUnsupported, "audio"},
      {R"({"messages": [{"role": "user", "content": "x"}], "images": [3]})", Reason::kRowSchema, "a number"},
      {R"({"messages": [{"role": "user", "content": "x"}], "images": ["a"], "images": ["b"]})",
       Reason::kJsonDuplicateKey, "'images'"},
      {R"({"messages": [{"role": "user", "content": "x", "\u0063ontent": "y"}]})", Reason::kJsonDuplicateKey,
       "'content'"},
      {R"({"messages": [{"role": "user", "content": "x"}],})", Reason::kJsonSyntax, "column 49"},
      {R"({"messages": [{"role": "user", "content": "x"}], "score": NaN})", Reason::kJsonNonfinite, "NaN"},
      {"{\"messages\": \"\xC3\"}", Reason::kJsonUtf8, "0xC3"},
  };
  for (const auto& [line, reason, words] : cases) {
    const Status status = refused(line);
    EXPECT_EQ(status.reason(), reason) << line << ": " << status.to_string();
    EXPECT_NE(status.message().find(words), std::string::npos) << line << ": " << status.message();
  }
}

TEST(ParseRow, MessagesCutForeignText) {
  const Status status = refused(fmt::format(R"({{"messages": [{{"role": "{}"}}]}})", std::string(100'000, 'x')));
  EXPECT_LT(status.message().size(), 400U);
}

TEST(ParseRow, Notes) {
  RowNotes notes;
  parsed(R"({"id": "000123", "messages": [{"role": "user", "content": "a\ud83db"}]})", &notes);
  EXPECT_EQ(notes.id, "000123");
  EXPECT_EQ(notes.text_replaced, 1U);
  parsed(R"({"id": 123, "messages": [{"role": "user", "content": "ab"}]})", &notes);
  EXPECT_EQ(notes.id, "123");
  EXPECT_EQ(notes.text_replaced, 0U);
  parsed(R"({"id": null, "messages": [{"role": "user", "content": "ab"}]})", &notes);
  EXPECT_EQ(notes.id, "");
}

// Whatever the bytes: a sample that holds together, or a typed error.
TEST(ParseRow, SurvivesDamage) {
  const std::string whole =
      R"({"messages": [{"role": "user", "content": "<image>\n\u00e9"}, {"role": "assistant", "content": [{"type": "text", "text": "x"}],
      "tool_calls": [{"name": "f", "arguments": {"a": [1.5, null]}}]}], "images": [{"path": "a", "width": 4, "height": 3}], "tools": "[{}]", "width": [4]})";
  Rng rng(2);
  int n_ok = 0;
  for (int round = 0; round < 50'000; ++round) {
    std::string line = whole;
    for (std::uint64_t i = 0; i <= rng.next() % 3; ++i) {
      const std::size_t at = rng.next() % line.size();
      if (rng.next() % 2 == 0) {
        line[at] = static_cast<char>(rng.next());
      } else {
        line.erase(at, 1 + rng.next() % 8);
      }
      if (line.empty()) line.push_back('x');
    }
    const auto sample = parse_row(line);
    if (!sample.ok()) {
      EXPECT_EQ(sample.status().code(), Code::kBadSample) << line;
      continue;
    }
    ++n_ok;
    summary(*sample);  // .at() throws if a part names a media that is not there
  }
  EXPECT_GT(n_ok, 100);
}

}  // namespace
}  // namespace stoker

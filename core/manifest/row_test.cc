#include "manifest/row.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
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
  constexpr std::array<const char*, 5> kRoles = {"system", "user", "assistant", "tool", "developer"};
  std::string out;
  for (const Turn& turn : sample.turns) {
    out += fmt::format("{}{}{}", out.empty() ? "" : " ", kRoles.at(static_cast<std::size_t>(turn.role)),
                       turn.has_content ? "+" : "-");
    if (turn.loss_scale) out += fmt::format("*{}", *turn.loss_scale);
    for (const Part& part : turn.parts) {
      if (part.kind == Part::Kind::kText) {
        out += fmt::format("[{}]", part.text);
        continue;
      }
      if (part.kind == Part::Kind::kBox) {
        const Box& box = sample.boxes.at(part.media);
        if (!box.name.empty()) {
          out += fmt::format("[ref {}]", box.name);
        } else {
          out +=
              fmt::format("[box {} in {}{}]", fmt::join(box.points, " "), box.media, box.is_share_of_sides ? " %" : "");
        }
        continue;
      }
      const MediaRef& media = sample.media.at(part.media);
      out += fmt::format("[{}:{}", part.media, media.reference);
      if (media.kind == MediaKind::kVideo)
        out += fmt::format("video {} @{}", fmt::join(media.frames, " "), media.frames_per_s);
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
       "video file"},
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

std::string with(const RowOptions& options, std::string_view line) {
  auto sample = parse_row(line, options);
  return sample.ok() ? summary(*sample)
                     : std::string(name_of(sample.status().reason())) + ": " + sample.status().message();
}

TEST(ParseRow, ShapesOfOneConversation) {
  const std::string expected = "system+[s] user+[q1] assistant+[a1] user+[0:a.png][q2] assistant+[a2]";
  const std::vector<std::pair<RowShape, std::string>> rows = {
      {RowShape::kMessages,
       R"({"system": "s", "images": ["a.png"], "messages": [{"role": "user", "content": "q1"}, {"role": "assistant", "content": "a1"},
           {"role": "user", "content": "<image>q2"}, {"role": "assistant", "content": "a2"}]})"},
      {RowShape::kConversations,
       R"({"image": "a.png", "conversations": [{"from": "system", "value": "s"}, {"from": "human", "value": "q1"},
           {"from": "gpt", "value": "a1"}, {"from": "human", "value": "<image>q2"}, {"from": "gpt", "value": "a2"}]})"},
      {RowShape::kQueryResponse,
       R"({"system": "s", "history": [["q1", "a1"]], "query": "<image>q2", "response": "a2", "images": ["a.png"]})"},
      {RowShape::kInstruction,
       R"({"system": "s", "history": [["q1", "a1"]], "instruction": "<image>q2", "input": "", "output": "a2", "images": ["a.png"]})"},
  };
  for (const auto& [shape, line] : rows) {
    RowNotes notes;
    EXPECT_EQ(summary(parsed(line, &notes)), expected) << line;
    EXPECT_EQ(notes.row_shape, shape);
  }
  EXPECT_EQ(of(R"({"instruction": "a", "input": "b", "output": "c"})"), "user+[a\nb] assistant+[c]");
}

TEST(ParseRow, OnlyTheCompletionIsTrained) {
  EXPECT_EQ(of(R"({"prompt": "q", "completion": "a"})"), "user+[q] assistant+[a]");
  EXPECT_EQ(
      of(R"({"prompt": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b", "loss": true},
                        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "r"}]}],
             "completion": [{"role": "assistant", "content": "c"}], "images": ["i"]})"),
      "user+[q] assistant+*0[a] assistant+*1[b] user+[0:i][r] assistant+[c]");
}

TEST(ParseRow, TwoShapesAreRefusedUnlessOneIsNamed) {
  const std::string line =
      R"({"messages": [{"role": "user", "content": "m"}], "query": "q", "response": "r", "prompt": "p"})";
  EXPECT_EQ(refused(line).reason(), Reason::kRowAmbiguous);
  RowOptions options;
  options.shape = RowShape::kQueryResponse;
  EXPECT_EQ(with(options, line), "user+[q] assistant+[r]");
  options.shape = RowShape::kMessages;
  EXPECT_EQ(with(options, line), "user+[m]");
  options.shape = RowShape::kInstruction;
  EXPECT_EQ(with(options, line).substr(0, 10), "ROW_SCHEMA");
  // Half a shape is none.
  EXPECT_EQ(of(R"({"messages": [{"role": "user", "content": "m"}], "prompt": "p", "output": "o"})"), "user+[m]");
  EXPECT_EQ(refused(R"({"prompt": "p", "query": "q"})").reason(), Reason::kRowSchema);
}

TEST(ParseRow, ColumnsAndRoles) {
  RowOptions options;
  options.columns = {
      {"messages", "dialog"}, {"role", "speaker"}, {"content", "says"}, {"images", "pics"}, {"system", "rules"}};
  options.roles = {{"bot", RowRole::kAssistant}, {"critic", RowRole::kUser}, {"user", RowRole::kDeveloper}};
  ASSERT_TRUE(check_row_options(options).ok());
  EXPECT_EQ(
      with(
          options,
          R"({"dialog": [{"speaker": "critic", "says": "<image>x", "role": 3, "from": 4}, {"speaker": "bot", "says": "y"},
                              {"speaker": "user", "says": "z"}], "pics": ["a"], "images": 3, "image": {}, "rules": "r", "conversations": 1})"),
      "system+[r] user+[0:a][x] assistant+[y] developer+[z]");
  EXPECT_EQ(with(options, R"({"messages": [{"role": "user", "content": "x"}]})").substr(0, 10), "ROW_SCHEMA");
  options = {};
  options.columns = {{"query", "instruction"}, {"response", "output"}};
  EXPECT_EQ(with(options, R"({"instruction": "a", "output": "b", "input": "c"})"), "user+[a] assistant+[b]");
  options.columns = {{"images_base64", "b64"}};
  EXPECT_EQ(with(options, R"({"messages": [{"role": "user", "content": "<image>"}], "b64": "QUJD"})"),
            "user+[0:data:;base64,QUJD]");
  for (const std::vector<std::pair<std::string, std::string>>& wrong :
       std::vector<std::vector<std::pair<std::string, std::string>>>{{{"nothing", "x"}},
                                                                     {{"images", ""}},
                                                                     {{"images", "x"}, {"images", "y"}},
                                                                     {{"images", "x"}, {"videos", "x"}},
                                                                     {{"value", "x"}}}) {
    options.columns = wrong;
    EXPECT_EQ(check_row_options(options).reason(), Reason::kSettings);
  }
}

TEST(ParseRow, OptionsDescribeThemselves) {
  RowOptions one;
  one.columns = {{"messages", "a"}, {"images", "b"}};
  RowOptions same;
  same.columns = {{"images", "b"}, {"messages", "a"}};
  EXPECT_EQ(describe(one), describe(same));
  RowOptions other = one;
  other.roles = {{"x", RowRole::kUser}};
  EXPECT_NE(describe(one), describe(other));
  other = one;
  other.json.nonfinite_is_null = true;
  EXPECT_NE(describe(one), describe(other));
  other = one;
  other.shape = RowShape::kMessages;
  EXPECT_NE(describe(one), describe(other));
}

TEST(ParseRow, ClipsAreListsOfPictures) {
  const auto part = [](const std::string& p) {
    return of(R"({"messages": [{"role": "user", "content": [)" + p + "]}]}");
  };
  EXPECT_EQ(part(R"({"type": "video", "video": ["a", "b"], "sample_fps": 2.5, "fps": 9})"), "user+[0:video a b @2.5]");
  EXPECT_EQ(part(R"({"type": "video", "video": ["a", {"image": "b"}], "fps": 1})"), "user+[0:video a b @1]");
  EXPECT_EQ(of(R"({"messages": [{"role": "user", "content": "<video>x<image><video>"}], "images": "i",
                   "videos": [["a", "b"], {"video": ["c"], "fps": 4}]})"),
            "user+[0:video a b @0][x][1:i][2:video c @4]");
  const Sample sample = parsed(
      R"({"messages": [{"role": "user", "content": [{"type": "video", "video": ["a", "b"], "raw_fps": 30, "total_pixels": 9000, "max_pixels": 500}]}]})");
  EXPECT_EQ(sample.media[0].source_frames_per_s, 30);
  EXPECT_EQ(sample.media[0].total_pixels, 9000);
  EXPECT_EQ(sample.media[0].max_pixels, 500);
  EXPECT_EQ(refused(R"({"messages": [{"role": "user", "content": "<video>"}]})").reason(), Reason::kMediaCount);
  EXPECT_EQ(refused(R"({"messages": [{"role": "user", "content": "x"}], "videos": [["a"]]})").reason(),
            Reason::kMediaCount);
  EXPECT_EQ(refused(R"({"messages": [{"role": "user", "content": "<video>"}], "videos": [[]]})").reason(),
            Reason::kRowSchema);
  EXPECT_EQ(refused(R"({"messages": [{"role": "user", "content": "<video>"}], "video": "a.mp4"})").reason(),
            Reason::kMediaUnsupported);
}

TEST(ParseRow, WhatAnImageAsksFor) {
  const Sample sample = parsed(
      R"({"messages": [{"role": "user", "content": [{"type": "image", "image": "a", "min_pixels": 50, "max_pixels": 100000000000},
           {"type": "image", "resized_height": 280, "resized_width": 420.0}, {"type": "image_url", "image_url": {"url": "c", "max_pixels": 7}}]}], "images": ["b"]})");
  EXPECT_EQ(sample.media[0].min_pixels, 50);
  EXPECT_EQ(sample.media[0].max_pixels, 100'000'000'000);
  EXPECT_EQ(sample.media[1].reference, "b");
  EXPECT_EQ(sample.media[1].resized_height_px, 280);
  EXPECT_EQ(sample.media[1].resized_width_px, 420);
  EXPECT_EQ(sample.media[2].reference, "c");
  EXPECT_EQ(sample.media[2].max_pixels, 7);
  for (const std::string bad :
       {R"("resized_height": 28)", R"("max_pixels": "100")", R"("min_pixels": 1.5)", R"("max_pixels": 1e30)"}) {
    EXPECT_EQ(refused(R"({"messages": [{"role": "user", "content": [{"type": "image", "image": "a", )" + bad + "}]}]}")
                  .reason(),
              Reason::kRowSchema)
        << bad;
  }
}

TEST(ParseRow, BoxesAndNames) {
  EXPECT_EQ(
      of(R"({"messages": [{"role": "user", "content": "<image><image>find <ref-object>"}, {"role": "assistant", "content": "<ref-object> at <bbox>, <bbox>"}],
                   "images": ["a", "b"], "objects": {"ref": ["dog", "cat"], "bbox": [[1, 2.5, 3, 4], [5, 6]], "image_id": [1]}})"),
      "user+[0:a][1:b][find ][ref dog] assistant+[ref cat][ at ][box 1 2.5 3 4 in 1][, ][box 5 6 in 0]");
  EXPECT_EQ(
      of(R"({"messages": [{"role": "user", "content": [{"type": "image", "image": "a"}, {"type": "text", "text": "<bbox> <image>"}]}],
                   "objects": {"bbox": [[0.1, 0.2, 0.3, 0.4]], "bbox_type": "norm1"}})"),
      "user+[0:a][box 0.1 0.2 0.3 0.4 in 0 %][ <image>]");
  EXPECT_EQ(of(R"({"messages": [{"role": "user", "content": "<bbox> and <ref-object>"}]})"),
            "user+[<bbox> and <ref-object>]");
  const auto row = [](const std::string& objects) {
    return refused(R"({"messages": [{"role": "user", "content": "<image><bbox>"}], "images": ["a"], "objects": )" +
                   objects + "}");
  };
  EXPECT_EQ(row(R"({"bbox": []})").reason(), Reason::kMediaCount);
  EXPECT_EQ(row(R"({"bbox": [[1, 2], [3, 4]]})").reason(), Reason::kMediaCount);
  for (const std::string bad :
       {R"({"bbox": [[1, 2, 3]]})", R"({"bbox": [[]]})", R"({"bbox": [3]})", R"({"bbox": [["1", "2"]]})",
        R"({"bbox": [[1e9, 2]]})", R"({"bbox": [[1, 2]], "image_id": [1]})", R"({"bbox": [[1, 2]], "image_id": [-1]})",
        R"({"bbox": [[1, 2]], "image_id": [0, 0]})", R"({"bbox": [[1, 2]], "bbox_type": "norm1000"})",
        R"({"bbox": [[1, 2]], "ref": [""]})", R"([])"}) {
    EXPECT_EQ(row(bad).reason(), Reason::kRowSchema) << bad;
  }
}

TEST(ParseRow, CallsInTurnsOfTheirOwn) {
  EXPECT_EQ(
      of(R"({"conversations": [{"from": "human", "value": "q"}, {"from": "function_call", "value": "{\"name\": \"f\", \"arguments\": {\"x\":1}}"},
                   {"from": "observation", "value": "o"}, {"from": "gpt", "value": "a"}]})"),
      R"(user+[q] assistant-(f {"x": 1}) tool+[o] assistant+[a])");
  EXPECT_EQ(
      of(R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "let me"}, {"role": "tool_call", "content": {"name": "f", "arguments": {}}},
                   {"role": "tool_call", "content": "[{\"name\": \"g\", \"arguments\": \"{}\"}]"}, {"role": "tool_response", "content": "o"}]})"),
      "user+[q] assistant+[let me](f {})(g {}) tool+[o]");
  for (const std::string bad : {R"("not json")", R"("[]")", "null", R"("{\"name\": \"f\"}")"}) {
    EXPECT_NE(refused(R"({"messages": [{"role": "tool_call", "content": )" + bad + "}]}").code(), Code::kOk) << bad;
  }
}

TEST(ParseRow, LossOfATurn) {
  EXPECT_EQ(of(R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "loss": false},
                   {"role": "assistant", "content": "b", "weight": 1}, {"role": "assistant", "content": "c", "loss_scale": 0.5, "loss": null},
                   {"role": "assistant", "content": "d", "loss": true, "weight": 1}]})"),
            "user+[q] assistant+*0[a] assistant+*1[b] assistant+*0.5[c] assistant+*1[d]");
  const auto turn = [](const std::string& loss) {
    return refused(R"({"messages": [{"role": "assistant", "content": "a", )" + loss + "}]}").reason();
  };
  EXPECT_EQ(turn(R"("loss": true, "weight": 0)"), Reason::kRowAmbiguous);
  EXPECT_EQ(turn(R"("loss": "yes")"), Reason::kRowSchema);
  for (const std::string bad : {"-1", "-1e-9", "1e7", "1e400", "1e-60"}) {
    EXPECT_EQ(turn(R"("loss_scale": )" + bad), Reason::kRowSchema) << bad;
  }
  EXPECT_EQ(of(R"({"messages": [{"role": "user", "content": "q", "loss": true, "loss_scale": 0.25},
                   {"role": "assistant", "content": "a", "weight": 2, "loss": true}]})"),
            "user+*0.25[q] assistant+*2[a]");
  EXPECT_EQ(turn(R"("loss": false, "loss_scale": 0.5)"), Reason::kRowAmbiguous);
  EXPECT_EQ(turn(R"("loss": 1, "loss_scale": 0.5)"), Reason::kRowAmbiguous);
}

TEST(ParseRow, ASystemPromptBesideTheConversation) {
  EXPECT_EQ(of(R"({"system": "", "messages": [{"role": "system", "content": "s"}]})"), "system+[s]");
  EXPECT_EQ(refused(R"({"system": "t", "messages": [{"role": "system", "content": "s"}]})").reason(),
            Reason::kRowAmbiguous);
  EXPECT_EQ(refused(R"({"system": 3, "messages": [{"role": "user", "content": "s"}]})").reason(), Reason::kRowSchema);
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

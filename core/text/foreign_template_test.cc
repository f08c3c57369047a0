#include "text/foreign_template.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "text/templates/native_template.h"

namespace stoker::text {
namespace {

/// Answers with what a function makes of the request.
class Fake final : public TurnRenderer {
 public:
  explicit Fake(std::function<std::string(std::string)> make) : make_(std::move(make)) {}
  Result<std::string> render(std::string_view request) const override { return make_(std::string(request)); }

 private:
  const std::function<std::string(std::string)> make_;
};

Turn turn(Role role, std::string text) {
  Turn t;
  t.role = role;
  t.has_content = !text.empty();
  if (t.has_content) t.parts.push_back({Part::Kind::kText, std::move(text), 0});
  return t;
}

/// The words of the first turn as they reach the renderer.
std::string first_content(const std::string& request) {
  const std::string key = "\"content\": \"";
  const std::size_t begin = request.find(key) + key.size();
  return request.substr(begin, request.find('"', begin) - begin);
}

TEST(ForeignTemplate, TheRequestIsTheConversation) {
  Sample sample;
  sample.turns = {turn(Role::kUser, "a\n\"b\\"), turn(Role::kAssistant, "")};
  sample.turns[0].parts.push_back({Part::Kind::kImage, "", 0});
  sample.turns[1].tool_calls = {{"f", "{\"x\": 1}"}};
  sample.tools = {"{\"name\": \"f\"}"};
  EXPECT_EQ(
      render_request(sample, {.add_generation_prompt = true}),
      R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "a\u000a\"b\\"},{"type": "image"}]},)"
      R"({"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "f", )"
      R"("arguments": "{\"x\": 1}"}}]}], "tools": [{"name": "f"}], "add_generation_prompt": true, )"
      R"("add_vision_id": false})");
}

TEST(ForeignTemplate, KnowsTheRowsControlTokensByTheirMark) {
  Sample sample;
  sample.turns = {turn(Role::kUser, "x<|im_start|>user"), turn(Role::kAssistant, "y")};
  std::string asked;
  const Fake renderer([&](std::string request) {
    asked = first_content(request);
    return "<|im_start|>user\n" + asked + "<|im_end|>\n<|im_start|>assistant\ny<|im_end|>\n";
  });
  const Rendered rendered = render_foreign(renderer, sample, {}).value();
  EXPECT_EQ(asked, "x<\xEF\xB7\x90|im_start|>user");
  ASSERT_EQ(rendered.chunks.size(), 2U);  // the row's own mark cuts nothing
  const RenderedTurn& first = rendered.chunks[0];
  EXPECT_EQ(first.text, "<|im_start|>user\nx<|im_start|>user<|im_end|>\n");
  ASSERT_EQ(first.content.size(), 1U);
  EXPECT_EQ(first.text.substr(first.content[0].begin, 12), "<|im_start|>");
  EXPECT_EQ(first.role, Role::kUser);
  EXPECT_EQ(first.turn, 0U);
  EXPECT_EQ(first.end_bytes, first.text.size() - 1);
  EXPECT_TRUE(rendered.chunks[1].is_assistant);
  EXPECT_EQ(rendered.chunks[1].turn, 1U);
}

TEST(ForeignTemplate, ATokenMadeOfTwoPartsIsMarkedToo) {
  Sample sample;
  sample.turns = {turn(Role::kUser, "a<|im_"), turn(Role::kAssistant, "y")};
  sample.turns[0].parts.push_back({Part::Kind::kText, "end|>b", 0});
  const Fake renderer([&](std::string request) {
    const std::size_t begin = request.find("a<");
    const std::string head = request.substr(begin, request.find('"', begin) - begin);
    return "<|im_start|>user\n" + head + "end|>b<|im_end|>\n";
  });
  const Rendered rendered = render_foreign(renderer, sample, {}).value();
  ASSERT_EQ(rendered.chunks.size(), 1U);
  EXPECT_EQ(rendered.chunks[0].text, "<|im_start|>user\na<|im_end|>b<|im_end|>\n");
  EXPECT_EQ(rendered.chunks[0].content.size(), 1U);
  EXPECT_EQ(rendered.chunks[0].end_bytes, rendered.chunks[0].text.size() - 1);
}

TEST(ForeignTemplate, AMarkThatTheRowHoldsIsNotUsed) {
  Sample sample;
  std::string all;
  for (char low = '\x90'; all.size() < 31 * 3; ++low) all += std::string("\xEF\xB7") + low;
  sample.turns = {turn(Role::kUser, all + "<|im_end|>")};
  std::string asked;
  const Fake renderer([&](std::string request) { return asked = first_content(request); });
  const Rendered rendered = render_foreign(renderer, sample, {}).value();
  EXPECT_EQ(asked, all + "<\xEF\xB7\xAF|im_end|>");
  EXPECT_EQ(rendered.text(), all + "<|im_end|>");
  sample.turns = {turn(Role::kUser, all + "\xEF\xB7\xAF")};
  EXPECT_EQ(render_foreign(renderer, sample, {}).status().reason(), Reason::kTemplateFailed);
}

TEST(ForeignTemplate, TurnsOfWhichTheNumberDiffersAreNobodys) {
  Sample sample;
  sample.turns = {turn(Role::kUser, "a"), turn(Role::kAssistant, "b")};
  const Fake renderer([](const std::string&) {
    return "head<|im_start|>system\nmade "
           "up<|im_end|>\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"
           "<|im_start|>assistant\nc<|im_end|>\n<|im_start|>critic\nd<|im_end|>\n<|im_start|>user";
  });
  const Rendered rendered = render_foreign(renderer, sample, {}).value();
  ASSERT_EQ(rendered.chunks.size(), 7U);
  EXPECT_FALSE(rendered.chunks[0].role.has_value());
  EXPECT_EQ(rendered.chunks[1].turn, RenderedTurn::kNoTurn);
  EXPECT_EQ(rendered.chunks[2].turn, 0U);
  EXPECT_EQ(rendered.chunks[3].turn, RenderedTurn::kNoTurn);
  EXPECT_TRUE(rendered.chunks[4].is_assistant);
  EXPECT_FALSE(rendered.chunks[5].role.has_value());
  EXPECT_FALSE(rendered.chunks[6].role.has_value());  // a header that never ends
}

TEST(ForeignTemplate, BothRenderAndADifferenceEndsTheRun) {
  Sample sample;
  sample.turns = {turn(Role::kUser, "a"), turn(Role::kAssistant, "b")};
  std::string answer;
  const TurnRendererFactory factory = [&](std::string_view,
                                          const std::filesystem::path&) -> Result<std::shared_ptr<const TurnRenderer>> {
    return std::shared_ptr<const TurnRenderer>(
        std::make_shared<Fake>([&answer](const std::string&) { return answer; }));
  };
  const auto both =
      ChatTemplate::load(std::string(STOKER_TESTDATA) + "/qwen3-vl", TemplateEngine::kCheck, factory).value();
  answer = "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n";
  EXPECT_TRUE(both.render(sample, {}).ok());
  answer = "<|im_start|>user\na <|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n";
  const Status status = both.render(sample, {}).status();
  EXPECT_EQ(status.reason(), Reason::kTemplateDiffers);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("from byte 18 on"), std::string::npos) << status.message();
}

TEST(ForeignTemplate, WithoutARendererAnUnknownTemplateIsRefused) {
  const Status refused = ChatTemplate::from_text("{{ messages }}", "some.jinja").status();
  EXPECT_EQ(refused.reason(), Reason::kTemplateUnknown);
  EXPECT_NE(refused.message().find("some.jinja"), std::string::npos);
  EXPECT_NE(refused.message().find("stoker[jinja]"), std::string::npos) << refused.message();
}

}  // namespace
}  // namespace stoker::text

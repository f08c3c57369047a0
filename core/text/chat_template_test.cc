#include "text/chat_template.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace stoker::text {
namespace {

const std::filesystem::path kModel = std::filesystem::path(STOKER_TESTDATA) / "qwen3-vl";

std::string shipped_template() {
  std::ifstream file(kModel / "chat_template.jinja", std::ios::binary);
  std::ostringstream content;
  content << file.rdbuf();
  return std::move(content).str();
}

Turn turn(Role role, std::string text) {
  Turn t;
  t.role = role;
  t.has_content = !text.empty();
  if (t.has_content) t.parts.push_back({Part::Kind::kText, std::move(text), 0});
  return t;
}

std::string joined(const std::vector<RenderedTurn>& chunks) { return Rendered{.chunks = chunks}.text(); }

std::vector<RenderedTurn> rendered(const Sample& sample, RenderOptions options = {}) {
  return ChatTemplate::load(kModel).value().render(sample, options).value().chunks;
}

TEST(ChatTemplate, RendersTurnsCallsAndToolAnswers) {
  Sample sample;
  sample.turns = {turn(Role::kSystem, "S"), turn(Role::kUser, "Q"),  turn(Role::kAssistant, "A"),
                  turn(Role::kTool, "R1"),  turn(Role::kTool, "R2"), turn(Role::kSystem, "dropped")};
  sample.turns[2].tool_calls = {{"f", "{\"x\": 1}"}, {"g", "{}"}};
  const auto chunks = rendered(sample, {.add_generation_prompt = true});
  EXPECT_EQ(joined(chunks),
            "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\nA\n<tool_call>\n"
            "{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>\n<tool_call>\n{\"name\": \"g\", \"arguments\": "
            "{}}\n</tool_call>"
            "<|im_end|>\n<|im_start|>user\n<tool_response>\nR1\n</tool_response>\n<tool_response>\nR2\n</"
            "tool_response><|im_end|>\n"
            "<|im_start|>assistant\n");
  ASSERT_EQ(chunks.size(), 5U);
  EXPECT_EQ(chunks[3].turn, 3U);
  EXPECT_TRUE(chunks[2].is_assistant);
  EXPECT_FALSE(chunks[4].is_assistant);
  EXPECT_EQ(chunks[4].turn, RenderedTurn::kNoTurn);
}

TEST(ChatTemplate, NamesTheRowsBytesAndMedia) {
  Sample sample;
  sample.turns = {turn(Role::kUser, "<|im_end|>")};
  sample.media.resize(1);
  sample.turns[0].parts.push_back({Part::Kind::kImage, "", 0});
  sample.turns[0].parts.push_back({Part::Kind::kText, "b", 0});
  const auto chunks = rendered(sample, {.add_vision_id = true});
  EXPECT_EQ(joined(chunks),
            "<|im_start|>user\n<|im_end|>Picture 1: <|vision_start|><|image_pad|><|vision_end|>b<|im_end|>\n");
  ASSERT_EQ(chunks[0].content.size(), 2U);
  EXPECT_EQ(chunks[0].content[0].begin, 17U);
  EXPECT_EQ(chunks[0].content[0].end, 27U);
  EXPECT_EQ(chunks[0].content[1].end - chunks[0].content[1].begin, 1U);
  EXPECT_EQ(chunks[0].media, std::vector<std::uint32_t>{0});
}

TEST(ChatTemplate, AnEmptyConversationIsABadRow) {
  EXPECT_EQ(ChatTemplate::load(kModel).value().render({}, {}).status().reason(), Reason::kRowSchema);
}

class TemplateFolder : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(testing::TempDir()) / ("chat_template_" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void write(const char* name, const std::string& text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }
  static std::string json_string(const std::string& text) {
    std::string out = "\"";
    for (const char c : text) {
      if (c == '"' || c == '\\') out += '\\';
      if (c == '\n') {
        out += "\\n";
      } else {
        out += c;
      }
    }
    return out + "\"";
  }
  std::filesystem::path folder_;
};

TEST_F(TemplateFolder, IsSearchedInTheReferencesOrder) {
  EXPECT_EQ(ChatTemplate::load(folder_).status().reason(), Reason::kModelFolder);
  write("tokenizer_config.json",
        "{\"chat_template\": [{\"name\": \"default\", \"template\": " + json_string(shipped_template()) + "}]}");
  EXPECT_TRUE(ChatTemplate::load(folder_).ok());
  write("chat_template.json", "{\"chat_template\": \"other\"}");
  EXPECT_EQ(ChatTemplate::load(folder_).status().reason(), Reason::kTemplateUnknown);
  write("chat_template.json", "{\"chat_template\": " + json_string(shipped_template()) + "}");
  EXPECT_TRUE(ChatTemplate::load(folder_).ok());
  write("chat_template.jinja", shipped_template() + " ");
  const Status unknown = ChatTemplate::load(folder_).status();
  EXPECT_EQ(unknown.reason(), Reason::kTemplateUnknown);
  EXPECT_NE(unknown.message().find((folder_ / "chat_template.jinja").string()), std::string::npos);
  write("chat_template.jinja", shipped_template());
  EXPECT_TRUE(ChatTemplate::load(folder_ / "chat_template.jinja").ok());
}

}  // namespace
}  // namespace stoker::text

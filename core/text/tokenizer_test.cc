#include "text/tokenizer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include <string>
#include <thread>
#include <vector>

namespace stoker::text {
namespace {

using Ids = std::vector<std::int32_t>;

const std::string kPath = std::string(STOKER_TESTDATA) + "/qwen3-vl/tokenizer.json";

const Tokenizer& qwen() {
  static const auto tokenizer = Tokenizer::load(kPath).value();
  return *tokenizer;
}

Ids encoded(const Tokenizer& tokenizer, std::string_view text, std::vector<ByteSpan> literal = {}) {
  Ids ids;
  tokenizer.encode(text, literal, ids);
  return ids;
}

/// Text that visits every branch: words, marks, digits, white space of all kinds, added tokens and what only looks like
/// them.
std::string random_text(std::mt19937& rng, std::size_t n_pieces) {
  static const std::vector<std::string> kPieces = {"the",
                                                   " tokenizer",
                                                   "I'M",
                                                   "'ll",
                                                   "don't",
                                                   "  ",
                                                   "\n",
                                                   "\r\n",
                                                   "\t",
                                                   " \n ",
                                                   "12345",
                                                   "\xC3\xA9",
                                                   "e\xCC\x81",
                                                   "a\xCC\xA3\xCC\x82",
                                                   "\xE5\x9B\xBE\xE5\x83\x8F",
                                                   "\xF0\x9F\x98\x80",
                                                   "<|im_end|>",
                                                   "<|im_",
                                                   "<think>",
                                                   "<",
                                                   "|>",
                                                   "...",
                                                   "!?",
                                                   "\xC2\xA0",
                                                   "\xE3\x80\x80",
                                                   "\xD0\x9F\xD1\x80\xD0\xB8\xD0\xB2\xD0\xB5\xD1\x82",
                                                   "xkcdqwzj",
                                                   "_snake_case",
                                                   "\xE1\x84\x92\xE1\x85\xA1\xE1\x86\xAB",
                                                   "\xFF",
                                                   "\xED\xA0\xBD"};
  std::string text;
  while (n_pieces-- > 0) text += kPieces[rng() % kPieces.size()];
  return text;
}

TEST(Tokenizer, KnowsSpotValuesOfTheReference) {
  EXPECT_EQ(encoded(qwen(), "12345"), (Ids{16, 17, 18, 19, 20}));
  EXPECT_EQ(encoded(qwen(), "I'M don'T"), (Ids{40, 27603, 1513, 17323}));
  EXPECT_EQ(encoded(qwen(), "a  b\t\n c"), (Ids{64, 220, 293, 1572, 272}));
  EXPECT_EQ(encoded(qwen(), "\r\n\r\n x"), (Ids{871, 856}));
  EXPECT_EQ(encoded(qwen(), "x<think>y"), (Ids{87, 151667, 88}));
  EXPECT_EQ(encoded(qwen(), "<|IMAGE_PAD|>"), (Ids{27, 91, 29926, 36451, 91, 29}));
  EXPECT_EQ(encoded(qwen(), ""), Ids{});
  EXPECT_EQ(qwen().token_id("<|im_end|>"), 151645);
  EXPECT_EQ(qwen().token_id("\n"), 198);
  EXPECT_EQ(qwen().token_id("no such entry"), std::nullopt);
  EXPECT_EQ(qwen().vocab_size(), 151669);
}

TEST(Tokenizer, AppendsAndForgetsNothing) {
  Ids ids = {7};
  qwen().encode("hi", {}, ids);
  ASSERT_EQ(ids.size(), 2U);
  EXPECT_EQ(ids[0], 7);
}

TEST(Tokenizer, PiecesCutAtAddedTokensGiveTheIdsOfTheWhole) {
  std::mt19937 rng(1);
  for (int round = 0; round < 300; ++round) {
    std::string whole;
    Ids pieces;
    for (int piece = 0; piece < 4; ++piece) {
      const std::string text = "<|im_start|>" + random_text(rng, rng() % 12);
      qwen().encode(text, {}, pieces);
      whole += text;
    }
    ASSERT_EQ(encoded(qwen(), whole), pieces) << whole;
  }
}

TEST(Tokenizer, TheWordCacheNeverShows) {
  // A fresh scratch per text against one that has seen everything before, in two orders.
  std::mt19937 rng(2);
  std::vector<std::string> texts;
  for (int i = 0; i < 300; ++i) texts.push_back(random_text(rng, rng() % 40));
  Tokenizer::Scratch warm;
  for (int round = 0; round < 2; ++round) {
    for (const std::string& text : texts) {
      Tokenizer::Scratch cold;
      Ids a, b;
      qwen().encode(text, {}, a, warm);
      if (&text - texts.data() < 40) {
        qwen().encode(text, {}, b, cold);
        ASSERT_EQ(a, b) << text;
      }
    }
  }
}

TEST(Tokenizer, GuardedTokensInsideContentAreText) {
  const std::string text = "<|im_start|>a<|im_end|>b<think><|im_end|>";
  Ids ids;
  const auto counts = qwen().encode(text, std::vector<ByteSpan>{{12, 31}}, ids);
  EXPECT_EQ(counts.control_literals, 1U);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 151644), 1);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 151645), 1);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 151667), 1);
  EXPECT_EQ(ids.back(), 151645);
  // One byte of a range is enough.
  ids.clear();
  EXPECT_EQ(qwen().encode("<|im_end|>", std::vector<ByteSpan>{{9, 10}}, ids).control_literals, 1U);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 151645), 0);
  for (const char* const token : {"<|im_start|>", "<|endoftext|>", "<|vision_start|>", "<|vision_end|>",
                                  "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"}) {
    EXPECT_TRUE(Tokenizer::is_guarded(token)) << token;
    EXPECT_GT(encoded(qwen(), token, {{0, 3}}).size(), 1U) << token;
  }
  for (const char* const token : {"<think>", "</tool_call>", "<|box_start|>", "<|fim_pad|>"}) {
    EXPECT_EQ(encoded(qwen(), token, {{0, 3}}).size(), 1U) << token;
  }
}

TEST(Tokenizer, LongPreTokensAreNotQuadratic) {
  // Quadratic merging would need hours for these.
  for (const char* const unit : {"a", "!", " ", "\n", "ab", "\xE5\x9B\xBE", "\xCC\x81"}) {
    std::string text;
    while (text.size() < 300'000) text += unit;
    EXPECT_GT(encoded(qwen(), text).size(), 0U);
  }
}

TEST(Tokenizer, ThreadsShareOne) {
  std::mt19937 rng(3);
  const std::string text = random_text(rng, 2000);
  const Ids expected = encoded(qwen(), text);
  std::vector<Ids> found(4);
  {
    std::vector<std::jthread> threads;
    for (Ids& ids : found) threads.emplace_back([&ids, &text] { qwen().encode(text, {}, ids); });
  }
  for (const Ids& ids : found) EXPECT_EQ(ids, expected);
}

// --- files that are something else

/// A whole tokenizer of the known form whose vocabulary is the 256 bytes and "ab".
std::string tiny_json() {
  std::string vocab;
  int next = 256;
  for (int b = 0; b < 256; ++b) {
    const bool stands_for_itself = (b >= 33 && b <= 126) || (b >= 161 && b != 173);
    vocab += fmt::format("\"\\u{:04x}\": {}, ", stands_for_itself ? b : next++, b);
  }
  return R"json({"added_tokens": [{"id": 257, "content": "<|im_end|>", "single_word": false, "lstrip": false, "rstrip": false,
    "normalized": false, "special": true}], "normalizer": {"type": "NFC"}, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
    {"type": "Split", "pattern": {"Regex": "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
    "behavior": "Isolated", "invert": false}, {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}]},
    "model": {"type": "BPE", "dropout": null, "unk_token": null, "byte_fallback": false, "ignore_merges": false, "vocab": {)json" +
         vocab + R"json("ab": 256}, "merges": [["a", "b"]]}})json";
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

TEST(TokenizerFile, AMinimalOneWorks) {
  const auto tiny = Tokenizer::parse(tiny_json(), "tiny.json");
  ASSERT_TRUE(tiny.ok()) << tiny.status().to_string();
  EXPECT_EQ(encoded(**tiny, "abba<|im_end|>ab"), (Ids{256, 'b', 'a', 257, 256}));
  EXPECT_EQ(encoded(**Tokenizer::parse(replaced(tiny_json(), R"([["a", "b"]])", R"(["a b"])"), "tiny.json"), "ab"),
            Ids{256});
  // Without an effect where each byte has an entry.
  const auto fallback = replaced(tiny_json(), R"("byte_fallback": false)", R"("byte_fallback": true)");
  EXPECT_EQ(encoded(**Tokenizer::parse(fallback, "tiny.json"), "ab\xC3\xA9"), (Ids{256, 0xC3, 0xA9}));
}

TEST(TokenizerFile, DecodesWhatItEncodes) {
  const std::string text = "ab caf\xC3\xA9<|im_end|>\n";
  std::string decoded;
  qwen().decode(encoded(qwen(), text), decoded);
  EXPECT_EQ(decoded, text);
  decoded.clear();
  qwen().decode(Ids{-1, 151644, 9'999'999, 198}, decoded);
  EXPECT_EQ(decoded, "<|im_start|>\n");
}

TEST(TokenizerFile, WhatIsNotImplementedIsRefusedByName) {
  const struct {
    const char *from, *to, *field;
  } kCases[] = {
      {R"("type": "BPE")", R"("type": "Unigram")", "model.type"},
      {R"("dropout": null)", R"("dropout": 0.1)", "model.dropout"},
      {R"("unk_token": null)", R"("unk_token": "<unk>")", "model.unk_token"},
      {R"("ignore_merges": false)", R"("ignore_merges": true)", "model.ignore_merges"},
      {R"("type": "NFC")", R"("type": "NFKC")", "normalizer.type"},
      {R"(\\p{N}|)", R"(\\p{N}{1,3}|)", "pattern.Regex"},
      {R"("use_regex": false)", R"("use_regex": true)", "use_regex"},
      {R"("lstrip": false)", R"("lstrip": true)", "lstrip"},
      {R"("normalized": false)", R"("normalized": true)", "normalized"},
      {R"([["a", "b"]])", R"([["a", "zz"]])", "model.merges[0]"},
      {R"([["a", "b"]])", R"([["a"]])", "model.merges[0]"},
      {R"("\u0063": 99, )", "", "byte 99"},
      {R"("\u0063": 99, )", R"("\u0063": 98, )", "id 98"},
      {R"("\u0063": 99, )", R"("\u0063": -1, )", "model.vocab"},
      {R"("ab": 256)", R"("a b": 256)", "model.vocab"},
      {R"("id": 257)", R"("id": 256)", "id 256"},
      {R"("added_tokens": [)", R"("added_tokens": [{"id": 257, "content": "x"}, )", "id 257"},
      {R"("added_tokens": [)", R"("added_tokens": [{"id": 258, "content": "<|im_end|>"}, )", "twice"},
      {R"("model")", R"("modell")", "model"},
      {R"({"added)", R"("added)", "JSON"},
  };
  for (const auto& c : kCases) {
    const auto result = Tokenizer::parse(replaced(tiny_json(), c.from, c.to), "some/tokenizer.json");
    ASSERT_FALSE(result.ok()) << c.to;
    EXPECT_EQ(result.status().reason(), Reason::kTokenizer) << c.to;
    EXPECT_NE(result.status().message().find("some/tokenizer.json"), std::string::npos) << result.status().message();
    EXPECT_NE(result.status().message().find(c.field), std::string::npos) << result.status().message();
  }
}

TEST(TokenizerFile, AnEmptyOneIsSaidToBeEmpty) {
  const auto result = Tokenizer::parse({}, "some/tokenizer.json");
  EXPECT_EQ(result.status().reason(), Reason::kTokenizer);
  EXPECT_NE(result.status().message().find("empty"), std::string::npos) << result.status().message();
}

TEST(TokenizerFile, AMissingOneIsAModelFolderError) {
  EXPECT_EQ(Tokenizer::load("/nowhere/tokenizer.json").status().reason(), Reason::kModelFolder);
}

}  // namespace
}  // namespace stoker::text

#include "text/tokenizer_json.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <array>
#include <cstdint>
#include <set>
#include <string>

#include "text/tokenizer.h"
#include "text/unicode.h"

namespace stoker::text {
namespace {

using simdjson::dom::element;

constexpr std::string_view kPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

/// Where a message's field lies; all checks speak with one voice.
class Reader {
 public:
  explicit Reader(std::string_view name) : name_(name) {}

  Status bad(std::string_view field, std::string_view text) const {
    return {Reason::kTokenizer, fmt::format("{}: {} {}", name_, field, text)};
  }
  Status expect_text(element at, const char* key, std::string_view wanted, std::string_view field) const {
    std::string_view found;
    if (at[key].get(found) || found != wanted) return bad(field, fmt::format("is not \"{}\"", wanted));
    return {};
  }
  /// A flag that must be off; absent counts as off.
  Status expect_off(element at, const char* key, std::string_view field) const {
    bool is_on = false;
    if (at[key].get(is_on) == simdjson::SUCCESS && is_on) return bad(field, "is true, which is not supported");
    return {};
  }
  /// A field that must be absent, null or "".
  Status expect_nothing(element at, const char* key, std::string_view field) const {
    element found;
    std::string_view text;
    if (at[key].get(found) || found.is_null() || (!found.get(text) && text.empty())) return {};
    return bad(field, "is set, which is not supported");
  }

 private:
  std::string_view name_;
};

/// GPT-2's printable stand-ins for bytes, the other way round: code point -> byte.
class ByteAlphabet {
 public:
  ByteAlphabet() {
    bytes_.fill(-1);
    std::size_t next = 256;
    for (std::size_t b = 0; b < 256; ++b) {
      const bool stands_for_itself = (b >= 33 && b <= 126) || (b >= 161 && b != 173);
      bytes_[stands_for_itself ? b : next++] = static_cast<int>(b);
    }
  }
  /// Appends the bytes that `text` (valid UTF-8) spells; false if it is not written in this alphabet.
  bool decode(std::string_view text, std::string& out) const {
    for (std::size_t i = 0; i < text.size();) {
      unsigned n = 0;
      const char32_t cp = unicode::decode(text.data() + i, n);
      if (cp >= bytes_.size() || bytes_[cp] < 0) return false;
      out.push_back(static_cast<char>(bytes_[cp]));
      i += n;
    }
    return true;
  }

 private:
  std::array<int, 256 + 68> bytes_{};
};

Status check_model(const Reader& r, element model) {
  STOKER_CHECKED(r.expect_text(model, "type", "BPE", "model.type"));
  STOKER_CHECKED(r.expect_nothing(model, "dropout", "model.dropout"));
  STOKER_CHECKED(r.expect_nothing(model, "unk_token", "model.unk_token"));
  STOKER_CHECKED(r.expect_nothing(model, "continuing_subword_prefix", "model.continuing_subword_prefix"));
  STOKER_CHECKED(r.expect_nothing(model, "end_of_word_suffix", "model.end_of_word_suffix"));
  STOKER_CHECKED(r.expect_off(model, "fuse_unk", "model.fuse_unk"));
  // byte_fallback is of no effect: it is for characters without an entry, and each byte must have one.
  return r.expect_off(model, "ignore_merges", "model.ignore_merges");
}

Status check_pipeline(const Reader& r, element root) {
  STOKER_CHECKED(r.expect_text(root["normalizer"].value_unsafe(), "type", "NFC", "normalizer.type"));
  const element pre = root["pre_tokenizer"].value_unsafe();
  STOKER_CHECKED(r.expect_text(pre, "type", "Sequence", "pre_tokenizer.type"));
  simdjson::dom::array steps;
  if (pre["pretokenizers"].get(steps) || steps.size() != 2) {
    return r.bad("pre_tokenizer.pretokenizers", "does not have two entries");
  }
  const element split = steps.at(0).value_unsafe();
  const element bytes = steps.at(1).value_unsafe();
  STOKER_CHECKED(r.expect_text(split, "type", "Split", "pre_tokenizer.pretokenizers[0].type"));
  STOKER_CHECKED(r.expect_text(split, "behavior", "Isolated", "pre_tokenizer.pretokenizers[0].behavior"));
  STOKER_CHECKED(r.expect_off(split, "invert", "pre_tokenizer.pretokenizers[0].invert"));
  std::string_view pattern;
  if (split["pattern"]["Regex"].get(pattern) || pattern != kPattern) {
    return r.bad("pre_tokenizer.pretokenizers[0].pattern.Regex", "is not the pattern of Qwen2 and Qwen3");
  }
  STOKER_CHECKED(r.expect_text(bytes, "type", "ByteLevel", "pre_tokenizer.pretokenizers[1].type"));
  STOKER_CHECKED(r.expect_off(bytes, "add_prefix_space", "pre_tokenizer.pretokenizers[1].add_prefix_space"));
  bool use_regex = true;  // the library's default
  if (bytes["use_regex"].get(use_regex) || use_regex) {
    return r.bad("pre_tokenizer.pretokenizers[1].use_regex", "is not false");
  }
  element post;
  if (root["post_processor"].get(post) || post.is_null()) return {};
  return r.expect_text(post, "type", "ByteLevel", "post_processor.type");
}

Result<std::vector<AddedToken>> read_added(const Reader& r, element root) {
  std::vector<AddedToken> added;
  simdjson::dom::array tokens;
  if (root["added_tokens"].get(tokens)) return r.bad("added_tokens", "is not a list");
  for (const element token : tokens) {
    std::string_view content;
    std::int64_t id = 0;
    if (token["content"].get(content) || content.empty()) return r.bad("added_tokens[].content", "is missing or empty");
    if (token["id"].get(id) || id < 0 || id >= Bpe::kIdLimit)
      return r.bad("added_tokens[].id", "is missing or out of range");
    for (const char* const flag : {"single_word", "lstrip", "rstrip", "normalized"}) {
      STOKER_CHECKED(r.expect_off(token, flag, fmt::format("added_tokens[\"{}\"].{}", content, flag)));
    }
    added.push_back({static_cast<std::int32_t>(id), std::string(content), Tokenizer::is_guarded(content)});
  }
  return added;
}

/// An id or a content that stands for two things would not come back as it went in.
Status check_added(const Reader& r, const std::vector<AddedToken>& added, const WordIndex& words) {
  std::set<std::int32_t> ids;
  std::set<std::string_view> contents;
  for (const AddedToken& token : added) {
    const auto bad = [&](std::string_view what) {
      return r.bad(fmt::format("added_tokens[\"{}\"]", token.content), what);
    };
    if (!contents.insert(token.content).second) return bad("is there twice");
    if (!ids.insert(token.id).second) return bad(fmt::format("has id {}, which another added token has", token.id));
    const std::string_view word = token.id < words.end_id() ? words.bytes_of(token.id) : std::string_view();
    if (!word.empty() && word != token.content) {
      return bad(fmt::format("has id {}, which another entry of model.vocab has", token.id));
    }
  }
  return {};
}

/// The two halves of a merge, written as a pair or as "left right".
bool read_merge(element merge, std::string_view& left, std::string_view& right) {
  simdjson::dom::array halves;
  if (!merge.get(halves)) return halves.size() == 2 && !halves.at(0).get(left) && !halves.at(1).get(right);
  std::string_view both;
  if (merge.get(both)) return false;
  const std::size_t space = both.find(' ');
  if (space == std::string_view::npos) return false;
  left = both.substr(0, space);
  right = both.substr(space + 1);
  return true;
}

Status read_vocabulary(const Reader& r, element model, const ByteAlphabet& alphabet, WordIndex& words) {
  simdjson::dom::object vocab;
  if (model["vocab"].get(vocab)) return r.bad("model.vocab", "is not an object");
  std::vector<bool> is_taken;
  std::string bytes;
  for (const auto& [key, value] : vocab) {
    std::int64_t wide_id = 0;
    if (value.get(wide_id) || wide_id < 0 || wide_id >= Bpe::kIdLimit) {
      return r.bad("model.vocab",
                   fmt::format("has the entry \"{}\" with an id that is no number or out of range", key));
    }
    const auto id = static_cast<std::size_t>(wide_id);
    bytes.clear();
    if (!alphabet.decode(key, bytes) || bytes.empty()) {
      return r.bad("model.vocab", fmt::format("has the entry \"{}\", which is not in the byte-level alphabet", key));
    }
    if (is_taken.size() <= id) is_taken.resize(id + 1);
    if (is_taken[id]) return r.bad("model.vocab", fmt::format("has id {} twice", id));
    is_taken[id] = true;
    words.add(static_cast<std::int32_t>(id), bytes);
  }
  words.close();
  return {};
}

Status read_merges(const Reader& r, element model, const ByteAlphabet& alphabet, TokenizerFile& file) {
  simdjson::dom::array merges;
  if (model["merges"].get(merges)) return r.bad("model.merges", "is not a list");
  file.merges.reserve(merges.size());
  std::string left_bytes, right_bytes;
  for (const element merge : merges) {
    const auto field = [&file] { return fmt::format("model.merges[{}]", file.merges.size()); };
    std::string_view left, right;
    if (!read_merge(merge, left, right)) return r.bad(field(), "is not a pair of entries");
    left_bytes.clear();
    right_bytes.clear();
    if (!alphabet.decode(left, left_bytes) || !alphabet.decode(right, right_bytes)) {
      return r.bad(field(), "is not in the byte-level alphabet");
    }
    Merge found{file.words.find(left_bytes), file.words.find(right_bytes), -1};
    found.merged = file.words.find(left_bytes.append(right_bytes));
    if (found.left < 0 || found.right < 0 || found.merged < 0) {
      return r.bad(field(), "names an entry that model.vocab does not have");
    }
    file.merges.push_back(found);
  }
  return {};
}

}  // namespace

Result<TokenizerFile> parse_tokenizer_json(std::string_view json, std::string_view name) {
  const Reader r(name);
  if (json.empty()) return r.bad("", "is empty");  // an empty view may point nowhere, which simdjson does not expect
  simdjson::dom::parser parser;
  element root;
  if (const auto error = parser.parse(json.data(), json.size()).get(root)) {
    return r.bad("", "is not valid JSON: " + std::string(simdjson::error_message(error)));
  }
  element model;
  for (const char* const part : {"normalizer", "pre_tokenizer", "model"}) {
    if (!root.is_object() || root[part].get(model) || !model.is_object()) return r.bad(part, "is not an object");
  }
  STOKER_CHECKED(check_model(r, model));
  STOKER_CHECKED(check_pipeline(r, root));
  TokenizerFile file;
  STOKER_TRY(file.added, read_added(r, root));
  const ByteAlphabet alphabet;
  STOKER_CHECKED(read_vocabulary(r, model, alphabet, file.words));
  STOKER_CHECKED(check_added(r, file.added, file.words));
  STOKER_CHECKED(read_merges(r, model, alphabet, file));
  return file;
}

}  // namespace stoker::text

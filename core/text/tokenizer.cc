#include "text/tokenizer.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <sstream>

#include "base/hash.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/nfc.h"
#include "text/pretokenize.h"
#include "text/tokenizer_json.h"
#include "text/word_cache.h"

namespace stoker::text {
namespace {

constexpr std::array<std::string_view, 8> kGuarded = {"<|im_start|>",     "<|im_end|>",     "<|endoftext|>",
                                                      "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
                                                      "<|image_pad|>",    "<|video_pad|>"};

std::uint64_t next_serial() {
  static std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

}  // namespace

struct Tokenizer::Model {
  Bpe bpe;
  AddedTokens added;
  std::string fingerprint;
  std::int32_t vocab_size = 0;
  std::uint64_t serial = next_serial();  // tells the words of one tokenizer from another's in a Scratch
};

namespace {

constexpr std::size_t kBatch = 128;

/// A word of a batch that has no short entry (yet).
struct NewWord {
  std::string_view bytes;
  std::size_t begin = 0, end = 0;  // its ids in State::new_ids
  bool is_known = false;           // it has a medium entry
};

}  // namespace

struct Tokenizer::Scratch::State {
  static constexpr std::size_t kChunk = 2048;

  std::uint64_t serial = 0;  // whose words `cache` holds
  WordCache cache;
  Bpe::Scratch bpe;
  Nfc nfc;
  std::string padded, repaired, normalized;
  std::vector<ByteSpan> spans;
  std::array<NewWord, kBatch> new_words;
  std::vector<std::int32_t> new_ids;
  std::array<Bpe::ShortWord, 16> group;  // words that are merged together
  std::array<NewWord*, 16> group_words;
  std::array<std::int32_t, kChunk + (kBatch + 1) * WordCache::kShortIds>
      chunk;  // room for a batch behind the mark to flush at
};

Tokenizer::Scratch::Scratch() : state_(std::make_unique<State>()) {}
Tokenizer::Scratch::~Scratch() = default;
Tokenizer::Scratch::Scratch(Scratch&&) noexcept = default;
Tokenizer::Scratch& Tokenizer::Scratch::operator=(Scratch&&) noexcept = default;

namespace {

/// Encodes the pieces of one text; ids gather in a small chunk so that the hot loop never asks a vector for room.
template <typename State>
class PieceEncoder {
 public:
  PieceEncoder(const Bpe& bpe, State& state, std::vector<std::int32_t>& ids) : bpe_(bpe), state_(state), ids_(ids) {}

  /// `piece` lies between added tokens; kTextPadding readable bytes follow it.
  void encode(std::string_view piece) {
    if (!Nfc::is_quickly(piece)) {
      state_.normalized.clear();
      state_.nfc.append(piece, state_.normalized);
      const std::size_t n_bytes = state_.normalized.size();
      state_.normalized.append(kTextPadding, '\0');
      piece = std::string_view(state_.normalized).substr(0, n_bytes);
    }
    const char* p = piece.data();
    const char* const end = p + piece.size();
    const PretokenizerView pretokenizer(end);
    std::int32_t* out = state_.chunk.data();
    // Words go in batches: all are cut and their cache lines asked for before the first is looked up, so that memory
    // answers in parallel.
    std::array<Word, kBatch> batch;
    while (p < end) {
      std::size_t n_words = 0;
      for (; n_words < kBatch && p < end; ++n_words) {
        const char* const q = pretokenizer.match_end(p);
        Word& word = batch[n_words];
        word.begin = p;
        word.n_bytes = static_cast<std::size_t>(q - p);
        if (word.n_bytes <= WordCache::kShortBytes) {
          word.key = WordCache::key_of(p, word.n_bytes);
          state_.cache.prefetch(word.key);
        } else if (word.n_bytes <= WordCache::kMediumBytes) {
          state_.cache.prefetch({p, word.n_bytes});
        }
        p = q;
      }
      std::size_t n_new = 0;
      for (std::size_t i = 0; i < n_words; ++i) {
        Word& word = batch[i];
        word.known = word.n_bytes <= WordCache::kShortBytes ? state_.cache.find(word.key) : nullptr;
        if (word.known == nullptr) state_.new_words[n_new++] = {{word.begin, word.n_bytes}, 0, 0, false};
      }
      if (n_new > 0) encode_new({state_.new_words.data(), n_new});
      const NewWord* new_word = state_.new_words.data();
      for (std::size_t i = 0; i < n_words; ++i) {
        if (const WordCache::Short* const known = batch[i].known; known != nullptr) [[likely]] {
          std::memcpy(out, known->ids.data(), sizeof known->ids);
          out += known->n_ids;
        } else {
          out = write_new(*new_word++, out);
        }
      }
      remember({state_.new_words.data(), n_new});
      if (out >= state_.chunk.data() + State::kChunk) out = flush(out);
    }
    flush(out);
  }

 private:
  struct Word {
    const char* begin;
    std::size_t n_bytes;
    WordCache::Key key;             // of a short word
    const WordCache::Short* known;  // valid until remember()
  };

  std::int32_t* flush(std::int32_t* out) {
    ids_.insert(ids_.end(), state_.chunk.data(), out);
    return state_.chunk.data();
  }

  /// Finds the ids of a batch's words that have no short entry.
  [[gnu::noinline]] void encode_new(std::span<NewWord> words) {
    auto& found = state_.new_ids;
    found.clear();
    std::size_t n_group = 0;
    const auto finish_group = [&] {
      bpe_.merge_together({state_.group.data(), n_group});
      for (std::size_t i = 0; i < n_group; ++i) {
        NewWord& word = *state_.group_words[i];
        word.begin = found.size();
        state_.group[i].append_to(found);
        word.end = found.size();
      }
      n_group = 0;
    };
    for (NewWord& word : words) {
      const std::size_t n_bytes = word.bytes.size();
      word.begin = found.size();
      const auto known =
          n_bytes <= WordCache::kMediumBytes ? state_.cache.find(word.bytes) : std::span<const std::int32_t>{};
      word.is_known = !known.empty();
      if (word.is_known) {
        found.insert(found.end(), known.begin(), known.end());
      } else if (const std::int32_t id = bpe_.whole(word.bytes); id >= 0) {
        found.push_back(id);
      } else if (n_bytes > Bpe::kShortBytes) {
        bpe_.merge(word.bytes, found, state_.bpe);
      } else {
        bpe_.begin(word.bytes, state_.group[n_group]);
        state_.group_words[n_group] = &word;
        if (++n_group == state_.group.size()) finish_group();
        continue;
      }
      word.end = found.size();
    }
    finish_group();
  }

  std::int32_t* write_new(const NewWord& word, std::int32_t* out) {
    const auto found = std::span<const std::int32_t>(state_.new_ids).subspan(word.begin, word.end - word.begin);
    if (found.size() <= WordCache::kShortIds) return std::copy(found.begin(), found.end(), out);
    out = flush(out);
    ids_.insert(ids_.end(), found.begin(), found.end());
    return out;
  }

  void remember(std::span<const NewWord> words) {
    for (const NewWord& word : words) {
      const auto found = std::span<const std::int32_t>(state_.new_ids).subspan(word.begin, word.end - word.begin);
      const std::size_t n_bytes = word.bytes.size();
      if (word.is_known) continue;
      if (n_bytes <= WordCache::kShortBytes && found.size() <= WordCache::kShortIds) {
        state_.cache.insert(WordCache::key_of(word.bytes.data(), n_bytes), found);
      } else if (n_bytes <= WordCache::kMediumBytes && found.size() <= WordCache::kMediumIds) {
        state_.cache.insert(word.bytes, found);
      }
    }
  }

  const Bpe& bpe_;
  State& state_;
  std::vector<std::int32_t>& ids_;
};

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<const Model> model) : model_(std::move(model)) {}
Tokenizer::~Tokenizer() = default;

bool Tokenizer::is_guarded(std::string_view token) {
  return std::find(kGuarded.begin(), kGuarded.end(), token) != kGuarded.end();
}

std::span<const std::string_view> Tokenizer::guarded() { return kGuarded; }

Result<std::shared_ptr<const Tokenizer>> Tokenizer::load(const std::filesystem::path& tokenizer_json) {
  std::ifstream file(tokenizer_json, std::ios::binary);
  std::ostringstream content;
  if (file) content << file.rdbuf();
  if (!file || !content) return Status(Reason::kModelFolder, "cannot read " + tokenizer_json.string());
  return parse(content.view(), tokenizer_json.string());
}

Result<std::shared_ptr<const Tokenizer>> Tokenizer::parse(std::string_view json, std::string_view name) {
  STOKER_TRY(TokenizerFile file, parse_tokenizer_json(json, name));
  std::int32_t last_id = file.words.end_id() - 1;
  Result<Bpe> bpe = Bpe::make(std::move(file.words), file.merges);
  if (!bpe.ok()) return std::move(bpe).status().with(name);
  for (const auto& token : file.added) last_id = std::max(last_id, token.id);
  auto model = std::make_unique<Model>(
      Model{std::move(bpe).value(), AddedTokens(std::move(file.added)), sha256_hex(json), last_id + 1});
  return std::shared_ptr<const Tokenizer>(new Tokenizer(std::move(model)));
}

Tokenizer::Counts Tokenizer::encode(std::string_view text, std::span<const ByteSpan> literal,
                                    std::vector<std::int32_t>& ids, Scratch& scratch) const {
  auto& state = *scratch.state_;
  if (state.serial != model_->serial) {
    state.cache.clear();
    state.serial = model_->serial;
  }
  Counts counts;
  if (!is_valid_utf8(text)) {
    state.repaired.clear();
    state.spans.assign(literal.begin(), literal.end());
    counts.replaced = repair_utf8(text, state.repaired, state.spans);
    text = state.repaired;
    literal = state.spans;
  }
  state.padded.assign(text);
  state.padded.append(kTextPadding, '\0');
  text = std::string_view(state.padded).substr(0, text.size());

  PieceEncoder encoder(model_->bpe, state, ids);
  AddedTokens::WalkView walk(model_->added, text, literal.data(), literal.size());
  for (std::size_t at = 0; at < text.size();) {
    const AddedTokens::Match match = walk.next();
    if (match.begin > at) encoder.encode(text.substr(at, match.begin - at));
    if (match.id >= 0) ids.push_back(match.id);
    at = match.end;
  }
  counts.control_literals = walk.n_guarded();
  return counts;
}

Tokenizer::Counts Tokenizer::encode(std::string_view text, std::span<const ByteSpan> literal,
                                    std::vector<std::int32_t>& ids) const {
  static thread_local Scratch scratch;
  return encode(text, literal, ids, scratch);
}

std::optional<std::int32_t> Tokenizer::token_id(std::string_view token) const {
  for (const AddedToken& added : model_->added.all()) {
    if (added.content == token) return added.id;
  }
  const std::int32_t id = model_->bpe.words().find(token);
  return id < 0 ? std::nullopt : std::optional(id);
}

void Tokenizer::decode(std::span<const std::int32_t> ids, std::string& bytes) const {
  const WordIndex& words = model_->bpe.words();
  for (const std::int32_t id : ids) {
    const auto is_id = [id](const AddedToken& token) { return token.id == id; };
    const auto& added = model_->added.all();
    if (id >= 0 && id < words.end_id() && !words.bytes_of(id).empty()) {
      bytes += words.bytes_of(id);
    } else if (const auto found = std::find_if(added.begin(), added.end(), is_id); found != added.end()) {
      bytes += found->content;
    }
  }
}

std::int32_t Tokenizer::vocab_size() const { return model_->vocab_size; }
const std::string& Tokenizer::fingerprint() const { return model_->fingerprint; }

}  // namespace stoker::text

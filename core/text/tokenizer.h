#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/utf8.h"

namespace stoker::text {

/// The byte-level BPE tokenizer of Qwen2 and later, read from a checkpoint's tokenizer.json. Ids equal those of the
/// Hugging Face `tokenizers` library 0.23.3 without special handling: nothing is added at either end, nothing is
/// truncated or padded. Immutable once loaded. Threads: any number may encode at one time.
class Tokenizer {
 public:
  /// One thread's working memory: buffers that grow to the longest text seen, and 2 MB of recently met words.
  /// Belongs to no tokenizer; a switch between tokenizers empties it.
  class Scratch {
   public:
    Scratch();
    ~Scratch();
    Scratch(Scratch&&) noexcept;
    Scratch& operator=(Scratch&&) noexcept;

   private:
    friend class Tokenizer;
    struct State;
    std::unique_ptr<State> state_;
  };

  /// What encoding met besides text.
  struct Counts {
    std::size_t replaced = 0;          ///< ill-formed UTF-8 sequences that became U+FFFD, see repair_utf8()
    std::size_t control_literals = 0;  ///< guarded tokens that stood in `literal` text and stayed text
  };

  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  /// Reads and checks the file; tens of milliseconds, on the caller's thread.
  /// @return kModelFolder if it cannot be read; kTokenizer, naming file and field, if it is not what this class
  /// implements: a BPE model
  ///         without unknown token or dropout, with an entry for each byte, the Qwen2 pattern, NFC, ByteLevel, added
  ///         tokens matched as they stand.
  static Result<std::shared_ptr<const Tokenizer>> load(const std::filesystem::path& tokenizer_json);
  /// The same from the file's content; `name` stands for the file in messages.
  static Result<std::shared_ptr<const Tokenizer>> parse(std::string_view json, std::string_view name);

  /// Appends the ids of `text`.
  ///
  /// @param text     Should be UTF-8; what is not becomes U+FFFD and is counted.
  /// @param literal  Byte ranges of `text` that come from the data, sorted and apart. The *guarded* tokens (turns, end
  /// of text, vision
  ///                 start, end and pads) are ordinary text wherever they touch such a range. Other added tokens are
  ///                 tokens everywhere. A range does not cut: text before and after it is encoded as one piece.
  /// @param ids      Appended to. No allocation besides its growth once `scratch` has seen texts as long as this.
  Counts encode(std::string_view text, std::span<const ByteSpan> literal, std::vector<std::int32_t>& ids,
                Scratch& scratch) const;
  /// With a scratch of the calling thread's own, which lives as long as the thread.
  Counts encode(std::string_view text, std::span<const ByteSpan> literal, std::vector<std::int32_t>& ids) const;

  /// The id of an added token ("<|im_end|>"), or of the vocabulary entry with exactly these bytes ("\n", " the").
  std::optional<std::int32_t> token_id(std::string_view token) const;
  /// Appends the text of some ids; an id that no token has adds nothing. A character may be spread over several ids, so
  /// only whole texts are sure to be UTF-8.
  void decode(std::span<const std::int32_t> ids, std::string& bytes) const;
  /// One more than the largest id.
  std::int32_t vocab_size() const;
  /// SHA-256 of the file, in hexadecimal.
  const std::string& fingerprint() const;
  /// Whether this added token is ordinary text inside literal ranges.
  static bool is_guarded(std::string_view token);
  /// All such tokens; each begins with '<'.
  static std::span<const std::string_view> guarded();

 private:
  struct Model;
  explicit Tokenizer(std::unique_ptr<const Model> model);

  const std::unique_ptr<const Model> model_;
};

}  // namespace stoker::text

#pragma once

#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/word_index.h"

namespace stoker::text {

/// What a tokenizer.json says, its strings turned back into bytes.
struct TokenizerFile {
  WordIndex words;            ///< closed
  std::vector<Merge> merges;  ///< in order of rank
  std::vector<AddedToken> added;
};

/// Reads a tokenizer.json and checks everything that the tokenizer takes for granted.
/// @return kTokenizer with the field that does not fit. `name` stands for the file in messages.
Result<TokenizerFile> parse_tokenizer_json(std::string_view json, std::string_view name);

}  // namespace stoker::text

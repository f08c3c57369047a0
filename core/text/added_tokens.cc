#include "text/added_tokens.h"

#include <algorithm>
#include <cstring>

namespace stoker::text {

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::stable_sort(tokens_.begin(), tokens_.end(),
                   [](const AddedToken& a, const AddedToken& b) { return a.content.size() > b.content.size(); });
  for (const AddedToken& token : tokens_) {
    begins_[static_cast<unsigned char>(token.content[0])] = true;
    if (token.content.size() == 1) {
      second_.fill(true);
    } else {
      second_[static_cast<unsigned char>(token.content[1])] = true;
    }
  }
  if (std::count(begins_.begin(), begins_.end(), true) == 1) {
    only_first_ = static_cast<unsigned char>(tokens_.front().content[0]);
  }
}

std::size_t AddedTokens::next_start(std::string_view text, std::size_t from) const {
  if (from >= text.size() || tokens_.empty()) return text.size();
  if (only_first_ >= 0) {
    const void* const at = std::memchr(text.data() + from, only_first_, text.size() - from);
    return at == nullptr ? text.size() : static_cast<std::size_t>(static_cast<const char*>(at) - text.data());
  }
  while (from < text.size() && !begins_[static_cast<unsigned char>(text[from])]) ++from;
  return from;
}

bool AddedTokens::WalkView::touches_literal(std::size_t begin, std::size_t end) {
  while (literal_ != literal_end_ && literal_->end <= begin) ++literal_;
  return literal_ != literal_end_ && literal_->begin < end;
}

AddedTokens::Match AddedTokens::WalkView::next() {
  for (std::size_t at = at_; (at = tokens_.next_start(text_, at)) < text_.size(); ++at) {
    if (at + 1 < text_.size() && !tokens_.second_[static_cast<unsigned char>(text_[at + 1])]) continue;
    bool passed_over = false;
    for (const AddedToken& token : tokens_.tokens_) {
      if (text_.compare(at, token.content.size(), token.content) != 0) continue;
      const std::size_t end = at + token.content.size();
      if (token.is_guarded && touches_literal(at, end)) {
        passed_over = true;
        continue;
      }
      at_ = end;
      return {at, end, token.id};
    }
    n_guarded_ += passed_over ? 1 : 0;
  }
  at_ = text_.size();
  return {text_.size(), text_.size(), -1};
}

}  // namespace stoker::text

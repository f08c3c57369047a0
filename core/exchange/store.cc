#include "exchange/store.h"

namespace stoker {
namespace {

bool is_word(std::string_view text) {
  if (text.empty() || text.size() > StoreKey::kMostNameBytes) return false;
  for (const char c : text) {
    const bool is_known = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
    if (!is_known) return false;
  }
  return true;
}

}  // namespace

bool StoreKey::is_valid() const { return is_word(space) && is_word(name); }

}  // namespace stoker

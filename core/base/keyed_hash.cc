#include "base/keyed_hash.h"

#include <xxhash.h>

namespace stoker {

struct KeyedHash::State {
  struct Free {
    void operator()(XXH3_state_t* s) const { XXH3_freeState(s); }
  };
  std::unique_ptr<XXH3_state_t, Free> xxh{XXH3_createState()};
};

KeyedHash::KeyedHash(std::string_view key)
    : seed_(XXH3_64bits(key.data(), key.size())), state_(std::make_unique<State>()) {}
KeyedHash::~KeyedHash() = default;
KeyedHash::KeyedHash(KeyedHash&&) noexcept = default;
KeyedHash& KeyedHash::operator=(KeyedHash&&) noexcept = default;

std::uint64_t KeyedHash::of(std::string_view bytes) const {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed_);
}

void KeyedHash::begin() { XXH3_64bits_reset_withSeed(state_->xxh.get(), seed_); }
void KeyedHash::add(std::string_view bytes) {
  if (!bytes.empty()) XXH3_64bits_update(state_->xxh.get(), bytes.data(), bytes.size());
}
std::uint64_t KeyedHash::end() const { return XXH3_64bits_digest(state_->xxh.get()); }

}  // namespace stoker

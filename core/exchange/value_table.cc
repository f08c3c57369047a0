#include "exchange/value_table.h"

#include <utility>

namespace stoker {

ValueTable::Value ValueTable::get(const StoreKey& key) const {
  const auto window = windows_.find({key.space, key.window});
  if (window == windows_.end()) return nullptr;
  const auto value = window->second.values.find(key.name);
  return value == window->second.values.end() ? nullptr : value->second;
}

ValueTable::Value ValueTable::compare_set(const StoreKey& key, const std::string& expected, std::string desired) {
  const Value there = get(key);
  if (there == nullptr ? !expected.empty() : *there != expected) return there;
  auto value = std::make_shared<const std::string>(std::move(desired));
  const auto [at, is_new] = windows_.try_emplace({key.space, key.window});
  Window& window = at->second;
  if (is_new) window.age = begun_.insert(begun_.end(), at->first);
  const std::size_t more = value->size() + (there == nullptr ? kOverhead + key.name.size() : 0);
  const std::size_t less = there == nullptr ? 0 : there->size();
  window.values[key.name] = value;
  if (there == nullptr) ++n_values_;
  window.n_bytes += more - less;
  n_bytes_ += more - less;
  make_room();
  return value;
}

void ValueTable::make_room() {
  for (auto age = begun_.begin(); age != begun_.end() && n_bytes_ > max_bytes_;) {
    const auto window = windows_.find(*age++);
    if (window->first.second != StoreKey::kKept) erase(window);
  }
  // Kept values are few and small; a peer that fills the memory with them loses them.
  if (n_bytes_ > max_bytes_) {
    windows_.clear();
    begun_.clear();
    n_bytes_ = 0;
    n_values_ = 0;
  }
}

void ValueTable::drop_before(const std::string& space, std::uint64_t window) {
  auto at = windows_.lower_bound({space, 0});
  while (at != windows_.end() && at->first.first == space && at->first.second < window) erase(at++);
}

void ValueTable::erase(std::map<WindowKey, Window>::iterator window) {
  n_bytes_ -= window->second.n_bytes;
  n_values_ -= window->second.values.size();
  begun_.erase(window->second.age);
  windows_.erase(window);
}

}  // namespace stoker

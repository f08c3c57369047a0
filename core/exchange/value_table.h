#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>

#include "exchange/store.h"

namespace stoker {

/// Values in memory, of at most `max_bytes` in all: beyond that the windows that were begun first go, whole. Kept
/// values count and stay. Threads: one.
class ValueTable {
 public:
  using Value = std::shared_ptr<const std::string>;  ///< null: nothing is there

  explicit ValueTable(std::size_t max_bytes) : max_bytes_(max_bytes) {}

  Value get(const StoreKey& key) const;
  /// As ValueStore::compare_set. What finds no room is answered as if it had been put and forgotten.
  Value compare_set(const StoreKey& key, const std::string& expected, std::string desired);
  void drop_before(const std::string& space, std::uint64_t window);

  std::size_t n_bytes() const { return n_bytes_; }
  std::size_t n_windows() const { return windows_.size(); }
  std::size_t n_values() const { return n_values_; }

 private:
  using WindowKey = std::pair<std::string, std::uint64_t>;  // space, window
  struct Window {
    std::map<std::string, Value> values;
    std::size_t n_bytes = 0;
    std::list<WindowKey>::iterator age;
  };
  void erase(std::map<WindowKey, Window>::iterator window);
  void make_room();

  static constexpr std::size_t kOverhead = 256;  // of an entry, about

  const std::size_t max_bytes_;
  std::size_t n_bytes_ = 0;
  std::size_t n_values_ = 0;
  std::map<WindowKey, Window> windows_;
  std::list<WindowKey> begun_;  // oldest first; of kept values too
};

}  // namespace stoker

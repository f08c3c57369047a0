#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/mutex.h"
#include "exchange/store.h"
#include "exchange/value_table.h"

namespace stoker::testing {

/// What the ranks of a test share: values of one process.
struct SharedMemory {
  Mutex mu;
  std::condition_variable_any changed;
  ValueTable values STOKER_GUARDED_BY(mu) = ValueTable(std::size_t{64} << 20);
  std::atomic<bool> is_lost{false};
  std::atomic<int> n_calls{0};
  std::function<void()> on_wait;  ///< in place of waiting, say to move a clock
};

class MemoryStore final : public ValueStore {
 public:
  explicit MemoryStore(std::shared_ptr<SharedMemory> memory) : memory_(std::move(memory)) {}

  Result<std::optional<std::string>> get(const StoreKey& key, std::chrono::milliseconds wait,
                                         std::stop_token stop) override {
    STOKER_CHECKED(check());
    MutexLock lock(memory_->mu);
    const auto there = [&]() STOKER_NO_ANALYSIS { return memory_->values.get(key); };
    if (wait.count() > 0 && there() == nullptr) {
      if (memory_->on_wait) {
        memory_->on_wait();
      } else {
        memory_->changed.wait_for(lock, stop, wait, [&] { return there() != nullptr; });
        if (stop.stop_requested()) return Status(Reason::kStopped, "stopped");
      }
    }
    const auto value = there();
    return value == nullptr ? std::optional<std::string>() : std::optional(*value);
  }
  Result<std::string> compare_set(const StoreKey& key, const std::string& expected, const std::string& desired,
                                  std::stop_token) override {
    STOKER_CHECKED(check());
    MutexLock lock(memory_->mu);
    const auto value = memory_->values.compare_set(key, expected, desired);
    memory_->changed.notify_all();
    return value == nullptr ? std::string() : *value;
  }
  Status drop_before(const std::string& space, std::uint64_t window, std::stop_token) override {
    STOKER_CHECKED(check());
    MutexLock lock(memory_->mu);
    memory_->values.drop_before(space, window);
    return {};
  }
  std::string describe() const override { return "memory"; }

 private:
  Status check() {
    ++memory_->n_calls;
    return memory_->is_lost ? Status(Reason::kFetchConnect, "gone") : Status();
  }
  const std::shared_ptr<SharedMemory> memory_;
};

}  // namespace stoker::testing

#include "exchange/foreign_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <future>
#include <set>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "exec/cpu.h"

namespace stoker {
namespace {

using std::chrono::milliseconds;

const std::string kNever("\0never", 6);  // no value is this

std::string flat(const StoreKey& key) {
  return key.window == StoreKey::kKept ? fmt::format("stoker/{}/kept/{}", key.space, key.name)
                                       : fmt::format("stoker/{}/{}/{}", key.space, key.window, key.name);
}

class ForeignStore final : public ValueStore {
 public:
  explicit ForeignStore(std::shared_ptr<KeyValues> values) : values_(std::move(values)) {
    thread_ = std::jthread([this](std::stop_token stop) { run(std::move(stop)); });
  }
  ~ForeignStore() override {
    thread_.request_stop();
    values_->join(thread_);
  }
  ForeignStore(const ForeignStore&) = delete;
  ForeignStore& operator=(const ForeignStore&) = delete;

  Result<std::optional<std::string>> get(const StoreKey& key, milliseconds wait, std::stop_token stop) override {
    if (!key.is_valid()) return Status(Reason::kInternal, "a key that the exchange does not know");
    const auto until = std::chrono::steady_clock::now() + wait;
    for (milliseconds pause(5);; pause = std::min(pause * 2, milliseconds(100))) {
      STOKER_TRY(const std::string there, ask({flat(key), kNever, kNever}, stop));
      if (there != kNever && !there.empty()) return std::optional(there);
      const auto left = std::chrono::duration_cast<milliseconds>(until - std::chrono::steady_clock::now());
      if (left <= milliseconds(0)) return std::optional<std::string>();
      MutexLock lock(mu_);
      changed_.wait_for(lock, stop, std::min(pause, left), [] { return false; });
      if (stop.stop_requested()) return Status(Reason::kStopped, "stopped while waiting for another rank");
    }
  }

  Result<std::string> compare_set(const StoreKey& key, const std::string& expected, const std::string& desired,
                                  std::stop_token stop) override {
    if (!key.is_valid()) return Status(Reason::kInternal, "a key that the exchange does not know");
    STOKER_TRY(std::string there, ask({flat(key), expected, desired}, std::move(stop)));
    if (there == desired) {
      MutexLock lock(mu_);
      if (key.window != StoreKey::kKept) written_.insert(key);
    } else if (there == expected) {
      there.clear();  // some stores answer so where nothing is
    }
    return there;
  }

  Status drop_before(const std::string& space, std::uint64_t window, std::stop_token stop) override {
    std::vector<StoreKey> old;
    {
      MutexLock lock(mu_);
      for (const StoreKey& key : written_) {
        if (key.space == space && key.window < window) old.push_back(key);
      }
      for (const StoreKey& key : old) written_.erase(key);
    }
    for (const StoreKey& key : old) {
      auto erased = ask({flat(key), "", ""}, stop);
      if (!erased.ok()) return std::move(erased).status();
    }
    return {};
  }

  std::string describe() const override { return values_->describe(); }

 private:
  struct Question {
    std::string key, expected, desired;  // both empty: erase
  };
  struct Asked {
    Question question;
    std::optional<Result<std::string>> answer;
  };

  Result<std::string> ask(Question question, std::stop_token stop) {
    auto asked = std::make_shared<Asked>(Asked{std::move(question), std::nullopt});
    MutexLock lock(mu_);
    // One thread asks, or two while claims are renewed: the line is short.
    waiting_.push_back(asked);
    changed_.notify_all();
    changed_.wait(lock, stop, [&]() STOKER_NO_ANALYSIS { return asked->answer.has_value(); });
    if (!asked->answer) {
      std::erase(waiting_, asked);
      return Status(Reason::kStopped, "stopped while asking the exchange");
    }
    return std::move(*asked->answer);
  }

  void run(std::stop_token stop) {
    become_background_thread("stoker-exchange");
    for (;;) {
      std::shared_ptr<Asked> next;
      {
        MutexLock lock(mu_);
        if (!changed_.wait(lock, stop, [this]() STOKER_NO_ANALYSIS { return !waiting_.empty(); })) return;
        next = waiting_.front();
        waiting_.erase(waiting_.begin());
      }
      const Question& q = next->question;
      Result<std::string> answer = std::string();
      if (q.expected.empty() && q.desired.empty()) {
        if (Status erased = values_->erase(q.key); !erased.ok()) answer = std::move(erased);
      } else {
        answer = values_->compare_set(q.key, q.expected, q.desired);
      }
      MutexLock lock(mu_);
      next->answer = std::move(answer);
      changed_.notify_all();
    }
  }

  const std::shared_ptr<KeyValues> values_;

  Mutex mu_;
  std::condition_variable_any changed_;
  std::vector<std::shared_ptr<Asked>> waiting_ STOKER_GUARDED_BY(mu_);
  std::set<StoreKey> written_ STOKER_GUARDED_BY(mu_);  // bounded by drop_before

  std::jthread thread_;  // last: joined first
};

}  // namespace

std::unique_ptr<ValueStore> make_foreign_store(std::shared_ptr<KeyValues> values) {
  return std::make_unique<ForeignStore>(std::move(values));
}

}  // namespace stoker

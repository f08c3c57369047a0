#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "source/source.h"

namespace stoker {

struct Job;

/// A read that others have joined because they want the same bytes. Threads: any.
class SharedRead {
 public:
  struct Follower {
    FetchRequest request;
    FetchDone done;
  };

  explicit SharedRead(std::string key, std::uint64_t priority) : key_(std::move(key)), priority_(priority) {}
  /// One of those who joined still wants the bytes.
  bool is_wanted() const STOKER_EXCLUDES(mu_);

 private:
  friend class SharedReads;
  const std::string key_;
  const std::uint64_t priority_;

  mutable Mutex mu_;
  bool is_over_ STOKER_GUARDED_BY(mu_) = false;
  std::vector<Follower> followers_ STOKER_GUARDED_BY(mu_);
};

/// Reads of the same bytes that are wanted at the same time: the first asks the store, the others get copies of its
/// answer. Threads: any.
class SharedReads {
 public:
  /// @return true if a read under way, no later in the plan, took in the job's request and callback. Else the job
  /// itself can be joined from now on (`Job::shared`), until `end`.
  bool join(Job& job) STOKER_EXCLUDES(mu_);
  /// Nobody can join any more. Those who did, each of whom is owed an answer.
  std::vector<SharedRead::Follower> end(const Job& job) STOKER_EXCLUDES(mu_);

 private:
  Mutex mu_;
  std::unordered_map<std::string_view, std::shared_ptr<SharedRead>> reads_ STOKER_GUARDED_BY(mu_);  // by their own keys
};

}  // namespace stoker

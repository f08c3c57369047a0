#include "source/shared_reads.h"

#include <algorithm>

#include <fmt/format.h>

#include "source/job.h"

namespace stoker {

bool SharedRead::is_wanted() const {
  MutexLock lock(mu_);
  return std::any_of(followers_.begin(), followers_.end(),
                     [](const Follower& f) { return !f.request.stop.stop_requested(); });
}

bool SharedReads::join(Job& job) {
  const FetchRequest& request = job.request;
  // No part can hold another's separator: the numbers come first.
  std::string key = fmt::format("{} {} {} {}\n{}", request.offset, request.length.value_or(UINT64_MAX),
                                request.as_stored, request.if_match, request.url);
  MutexLock lock(mu_);
  std::shared_ptr<SharedRead>& read = reads_[key];
  if (read && read->priority_ <= request.priority) {
    MutexLock inner(read->mu_);
    if (!read->is_over_) {
      read->followers_.push_back({std::move(job.request), std::move(job.done)});
      return true;
    }
  }
  // Also in place of one that stands later in the plan: what is needed first is not to wait for its turn.
  read = job.shared = std::make_shared<SharedRead>(std::move(key), request.priority);
  return false;
}

std::vector<SharedRead::Follower> SharedReads::end(const Job& job) {
  if (!job.shared) return {};
  {
    MutexLock lock(mu_);
    const auto found = reads_.find(job.shared->key_);
    if (found != reads_.end() && found->second == job.shared) reads_.erase(found);
  }
  MutexLock lock(job.shared->mu_);
  job.shared->is_over_ = true;
  return std::exchange(job.shared->followers_, {});
}

}  // namespace stoker

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

namespace {

std::string key_of(const FetchRequest& request) {
  const std::uint64_t length = request.length.value_or(UINT64_MAX);
  const fmt::format_int offset_text(request.offset), length_text(length);
  std::string key;
  key.reserve(64 + request.if_match.size() + request.url.size());
  // No part can hold another's separator: the numbers come first.
  key.append(offset_text.data(), offset_text.size()) += ' ';
  key.append(length_text.data(), length_text.size()) += ' ';
  key.append(request.as_stored ? "1 " : "0 ").append(request.if_match).append("\n").append(request.url);
  return key;
}

}  // namespace

bool SharedReads::join(Job& job) {
  const FetchRequest& request = job.request;
  auto mine = std::make_shared<SharedRead>(key_of(request), request.priority);
  MutexLock lock(mu_);
  const auto [found, is_alone] = reads_.try_emplace(mine->key_, mine);
  if (!is_alone) {
    SharedRead& read = *found->second;
    if (read.priority_ <= request.priority) {
      MutexLock inner(read.mu_);
      if (!read.is_over_) {
        read.followers_.push_back({std::move(job.request), std::move(job.done)});
        return true;
      }
    }
    // Also in place of one that stands later in the plan: what is needed first is not to wait for its turn.
    const std::shared_ptr<SharedRead> last_use_of_its_key = found->second;
    reads_.erase(found);
    reads_.emplace(mine->key_, mine);
  }
  job.shared = std::move(mine);
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

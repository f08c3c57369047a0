#include "source/cache/cache_stage.h"

#include <utility>

namespace stoker {

Result<std::unique_ptr<CacheStage>> CacheStage::create(CacheSettings settings, std::string s3_endpoint,
                                                       const Clock& clock, Next pass_on, Next answer) {
  STOKER_TRY(auto cache, DiskCache::open(std::move(settings), clock));
  return std::unique_ptr<CacheStage>(
      new CacheStage(std::move(cache), std::move(s3_endpoint), clock, std::move(pass_on), std::move(answer)));
}

CacheStage::CacheStage(std::unique_ptr<DiskCache> cache, std::string s3_endpoint, const Clock& clock, Next pass_on,
                       Next answer)
    : s3_endpoint_(std::move(s3_endpoint)),
      pass_on_(std::move(pass_on)),
      answer_(std::move(answer)),
      cache_(std::move(cache)),
      pool_(*this, *this, *this, *this, clock) {
  for (int i = 0; i < kThreads; ++i) queue_.add_worker(pool_.add_thread());
  pool_.start();
}

CacheKey CacheStage::key_of(const FetchRequest& request, const Location& at) const {
  return CacheKey::of(at.kind == Location::Kind::kS3 ? s3_endpoint_ : "", request.url);
}

void CacheStage::push(std::unique_ptr<Job> job) {
  job->kept = std::make_shared<Kept>();
  job->kept->key = key_of(job->request, job->at);
  if (!cache_->is_of_share(job->kept->key)) return pass_on_(std::move(job));
  if (auto refused = queue_.push(std::move(job))) pass_on_(std::move(refused));
}

Result<FetchedObject> CacheStage::read(const FetchRequest& request, const Location& at, std::stop_token) const {
  auto found = cache_->read(key_of(request, at), request);
  if (!found) return Status(Reason::kMediaNotFound, "not in the cache");
  return *std::move(found);
}

void CacheStage::settle(int worker, std::unique_ptr<Job> job, Outcome outcome) {
  queue_.release(worker, job->prefix);
  if (!outcome.status.ok()) return pass_on_(std::move(job));  // no longer wanted, no memory: the network's to say
  job->kept->etag = outcome.object.etag;
  job->kept->found = std::move(outcome.object);
  if (cache_->is_validated()) return pass_on_(std::move(job));
  job->is_unchanged = true;
  answer_(std::move(job));
}

void CacheStage::settle_answer(Job& job, Result<FetchedObject>& result) {
  if (!job.kept) return;
  Kept& kept = *job.kept;
  // Another version came while the older one took the room that was meant for it. Whoever asks again has it all.
  if (!result.ok() && result.status().code() == Code::kExhausted && !kept.etag.empty()) cache_->forget(kept.key);
  if (!result.ok()) return;
  if (job.is_unchanged) {
    kept.found.first_byte = result->first_byte;
    kept.found.took = result->took;
    result = std::move(kept.found);
    cache_->count_hit(result->bytes.size());
    return;
  }
  cache_->count_miss(!kept.etag.empty() && kept.etag != result->etag);
  const bool is_whole = job.request.offset == 0 && result->bytes.size() == result->total_bytes;
  if (is_whole && (kept.etag.empty() || kept.etag != result->etag)) cache_->offer(kept.key, *result);
}

void CacheStage::stop() {
  for (auto& job : queue_.close()) pass_on_(std::move(job));
  pool_.stop();
  cache_->stop();
}

}  // namespace stoker

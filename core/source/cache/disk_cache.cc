#include "source/cache/disk_cache.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/log.h"
#include "exec/cpu.h"

namespace stoker {
namespace {

// A larger object would push out many others at once.
constexpr std::uint64_t kLargestShareOfLimit = 8;

bool read_all(int fd, void* to, std::size_t n_bytes, std::size_t offset) {
  auto* at = static_cast<char*>(to);
  while (n_bytes > 0) {
    const ssize_t n = pread(fd, at, n_bytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += n;
    offset += static_cast<std::size_t>(n);
    n_bytes -= static_cast<std::size_t>(n);
  }
  return true;
}

// The head of an entry, and how far the file was read for it.
struct Front {
  CacheEntry entry;
  std::string bytes;
};

bool read_front(int fd, const CacheKey& key, Front& front) {
  struct stat info {};
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) return false;
  const auto file_bytes = static_cast<std::uint64_t>(info.st_size);
  front.bytes.resize(std::min<std::uint64_t>(file_bytes, CacheEntry::kMaxHeadBytes));
  return read_all(fd, front.bytes.data(), front.bytes.size(), 0) &&
         read_entry_head(front.bytes, file_bytes, key, front.entry);
}

// A tag that stands for exactly these bytes.
bool is_strong(std::string_view etag) { return !etag.empty() && !etag.starts_with("W/"); }

std::optional<FetchedObject> part_of(FetchedObject whole, const FetchRequest& request) {
  const std::size_t size = whole.bytes.size();
  const std::size_t begin = std::min<std::uint64_t>(request.offset, size);
  const std::size_t n_bytes = std::min<std::uint64_t>(request.length.value_or(UINT64_MAX), size - begin);
  Result<Buffer> part = make_buffer(request.lease_for, n_bytes);
  if (!part.ok()) return std::nullopt;
  if (n_bytes > 0) std::memcpy(part->data(), whole.bytes.data() + begin, n_bytes);
  whole.bytes = *std::move(part);
  return whole;
}

}  // namespace

Result<std::unique_ptr<DiskCache>> DiskCache::open(CacheSettings settings, const Clock& clock) {
  STOKER_TRY(auto folder, CacheFolder::open(settings.dir));
  std::unique_ptr<DiskCache> cache(new DiskCache(std::move(settings), std::move(folder), clock));
  cache->thread_ = std::thread([me = cache.get()] {
    become_io_thread("stoker-cache");
    me->run();
  });
  return cache;
}

DiskCache::DiskCache(CacheSettings settings, std::unique_ptr<CacheFolder> folder, const Clock& clock)
    : settings_(std::move(settings)),
      max_object_bytes_(std::min<std::uint64_t>(settings_.limit_bytes / kLargestShareOfLimit, kMaxQueuedBytes)),
      folder_(std::move(folder)),
      clock_(clock) {}

DiskCache::~DiskCache() { stop(); }

void DiskCache::stop() {
  stop_.request_stop();
  if (thread_.joinable()) thread_.join();
}

std::optional<FetchedObject> DiskCache::read(const CacheKey& key, const FetchRequest& request) {
  const OwnedFd file = folder_->find(key);
  if (!file.is_open()) return std::nullopt;
  const bool is_whole = request.offset == 0 && !request.length;
  Front front;
  bool is_sound = read_front(file.get(), key, front);
  FetchedObject object;
  if (is_sound) {
    const std::size_t size = static_cast<std::size_t>(front.entry.object_bytes);
    if (size > kMaxQueuedBytes || (!is_whole && size > kMaxForParts)) return std::nullopt;
    if (!request.if_match.empty() && request.if_match != front.entry.etag) return std::nullopt;
    Result<Buffer> room = make_buffer(is_whole ? request.lease_for : LeaseFor(), size);
    if (!room.ok()) return std::nullopt;  // the network's read will say so
    object.bytes = *std::move(room);
    object.total_bytes = size;
    object.etag = front.entry.etag;
    const std::size_t head = front.entry.head_bytes();
    const std::size_t n_there = std::min(front.bytes.size() - head, size);
    if (n_there > 0) std::memcpy(object.bytes.data(), front.bytes.data() + head, n_there);
    is_sound = read_all(file.get(), object.bytes.data() + n_there, size - n_there, head + n_there) &&
               is_entry_sound(front.entry, key, object.bytes.bytes());
  }
  if (!is_sound) {
    n_damaged_.add(1);
    folder_->remove(key);
    return std::nullopt;
  }
  if (is_whole) return object;
  return part_of(std::move(object), request);
}

void DiskCache::forget(const CacheKey& key) { folder_->remove(key); }

void DiskCache::offer(const CacheKey& key, const FetchedObject& whole) {
  const std::size_t size = whole.bytes.size();
  if (size == 0 || size > max_object_bytes_ || !is_of_share(key)) return;
  // Without a tag of its own the object could never be asked after.
  if (settings_.is_validated && !is_strong(whole.etag)) return;
  if (whole.etag.size() > CacheEntry::kMaxTagBytes) return;
  if (clock_.now().count() < resting_until_ns_.load(std::memory_order_relaxed)) return;
  {
    MutexLock lock(mu_);
    if (stop_.stop_requested()) return;
    if (queued_bytes_ + size > kMaxQueuedBytes) {
      n_lagging_.add(1);
      return;
    }
    queued_bytes_ += size;
  }
  // Copied without the lock: other network threads wait for it.
  Result<Buffer> copy = make_buffer({}, size);
  if (copy.ok()) std::memcpy(copy->data(), whole.bytes.data(), size);
  MutexLock lock(mu_);
  if (copy.ok()) {
    queue_.push_back({key, whole.etag, *std::move(copy)});
  } else {
    n_lagging_.add(1);
    queued_bytes_ -= size;
  }
  changed_.notify_all();
}

void DiskCache::run() {
  const std::stop_token stop = stop_.get_token();
  has_joined();
  MutexLock lock(mu_);
  while (changed_.wait(lock, stop, [this]() STOKER_NO_ANALYSIS { return !queue_.empty(); })) {
    Offered offered = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    const bool is_resting = clock_.now().count() < resting_until_ns_.load(std::memory_order_relaxed);
    if (!is_resting && has_joined()) {
      if (Status kept = keep(offered); !kept.ok()) rest(kept);
    }
    lock.lock();
    queued_bytes_ -= offered.object.size();
    changed_.notify_all();
  }
  queue_.clear();
  queued_bytes_ = 0;
  changed_.notify_all();
}

bool DiskCache::has_joined() {
  if (is_member_) return true;
  Result<CacheTotals> totals = folder_->join(settings_.limit_bytes, stop_.get_token());
  if (totals.ok()) {
    is_member_ = true;
    note(*totals);
    log(LogLevel::kInfo, fmt::format("cache: {} holds {:.2f} of {:.2f} GB, and keeps {:.0f} % of all objects",
                                     settings_.dir, static_cast<double>(totals->used_bytes) * 1e-9,
                                     static_cast<double>(settings_.limit_bytes) * 1e-9, 100 * stats().share));
  } else if (totals.status().code() != Code::kCancelled) {
    rest(totals.status());
  }
  return is_member_;
}

Status DiskCache::keep(const Offered& offered) {
  if (is_kept(offered.key, offered.etag)) return {};
  const std::string head = entry_head(offered.key, offered.etag, offered.object.bytes());
  const std::uint64_t n_bytes = CacheFolder::footprint(head.size() + offered.object.size());
  CacheTotals totals;
  STOKER_TRY(const bool has_room, folder_->reserve(offered.key.place, n_bytes, settings_.limit_bytes, totals));
  note(totals);
  if (!has_room) return {};
  Result<std::string> temporary = folder_->write(head, offered.object.bytes());
  Result<bool> is_there = folder_->publish(temporary.ok() ? *temporary : "", offered.key, n_bytes, totals);
  if (!temporary.ok()) return std::move(temporary).status();
  if (!is_there.ok()) return std::move(is_there).status();
  note(totals);
  if (*is_there) {
    n_written_.add(1);
    n_written_bytes_.add(static_cast<std::int64_t>(offered.object.size()));
  }
  rest_ = kFirstRest;
  return {};
}

// Somebody else may have kept it meanwhile. What is there under another tag is older, and goes.
bool DiskCache::is_kept(const CacheKey& key, std::string_view etag) {
  const OwnedFd file = folder_->find(key);
  if (!file.is_open()) return false;
  Front front;
  if (read_front(file.get(), key, front) && front.entry.etag == etag) return true;
  folder_->remove(key);
  return false;
}

void DiskCache::rest(const Status& why) {
  resting_until_ns_.store((clock_.now() + rest_).count(), std::memory_order_relaxed);
  log(LogLevel::kWarning,
      fmt::format("cache: {}: {}; nothing more is kept for {:.0f} minutes, and everything else goes on", settings_.dir,
                  why.message(), to_seconds(rest_) / 60));
  rest_ = std::min(2 * rest_, kLongestRest);
}

void DiskCache::note(const CacheTotals& totals) {
  end_place_.store(totals.end_place, std::memory_order_relaxed);
  used_bytes_.store(totals.used_bytes, std::memory_order_relaxed);
  n_evicted_.add(static_cast<std::int64_t>(totals.n_evicted));
}

void DiskCache::drain() {
  const std::stop_token stop = stop_.get_token();
  MutexLock lock(mu_);
  changed_.wait(lock, stop, [this]() STOKER_NO_ANALYSIS { return queued_bytes_ == 0; });
}

void DiskCache::count_hit(std::uint64_t n_bytes) {
  n_hits_.add(1);
  n_hit_bytes_.add(static_cast<std::int64_t>(n_bytes));
}

void DiskCache::count_miss(bool has_changed) {
  n_misses_.add(1);
  if (has_changed) n_changed_.add(1);
}

CacheStats DiskCache::stats() const {
  CacheStats s;
  s.n_hits = n_hits_.get();
  s.n_misses = n_misses_.get();
  s.n_changed = n_changed_.get();
  s.n_hit_bytes = n_hit_bytes_.get();
  s.n_written = n_written_.get();
  s.n_written_bytes = n_written_bytes_.get();
  s.n_lagging = n_lagging_.get();
  s.n_evicted = n_evicted_.get();
  s.n_damaged = n_damaged_.get();
  s.used_bytes = used_bytes_.load(std::memory_order_relaxed);
  s.limit_bytes = settings_.limit_bytes;
  s.share = std::ldexp(static_cast<double>(end_place_.load(std::memory_order_relaxed)), -64);
  return s;
}

}  // namespace stoker

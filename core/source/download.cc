#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <system_error>

#include <fmt/format.h>

#include "base/mutex.h"
#include "source/source.h"
#include "source/url.h"

namespace stoker {
namespace {

constexpr std::uint64_t kPartBytes = std::uint64_t{8} << 20;
constexpr std::size_t kPartsInFlight = 4;

// The file while it is incomplete; removed unless `keep` was reached.
class PartialFile {
 public:
  explicit PartialFile(const std::string& path)
      : path_(path),
        partial_(fmt::format("{}.partial.{}", path, getpid())),
        fd_(open(partial_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)) {}
  ~PartialFile() {
    if (fd_ < 0) return;
    close(fd_);
    if (!is_kept_) unlink(partial_.c_str());
  }
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  Status opened() const { return fd_ >= 0 ? Status() : error("create"); }

  Status append(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t n = write(fd_, bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return error("write");
      bytes = bytes.subspan(static_cast<std::size_t>(n));
    }
    return {};
  }

  Status keep() {
    if (fsync(fd_) != 0) return error("sync");
    if (rename(partial_.c_str(), path_.c_str()) != 0) return error("rename");
    is_kept_ = true;
    return {};
  }

 private:
  Status error(const char* what) const {
    return {Reason::kIndexDir,
            fmt::format("cannot {} \"{}\": {}", what, partial_, std::generic_category().message(errno))};
  }

  const std::string path_;
  const std::string partial_;
  const int fd_;
  bool is_kept_ = false;
};

// Parts that were asked for, in order; answers come in any order.
struct Part {
  Mutex mu;
  std::condition_variable_any arrived;
  std::optional<Result<FetchedObject>> result STOKER_GUARDED_BY(mu);

  Result<FetchedObject> wait(std::stop_token stop) STOKER_EXCLUDES(mu) {
    MutexLock lock(mu);
    while (!result && !stop.stop_requested()) {
      arrived.wait(lock, stop, [&]() STOKER_NO_ANALYSIS { return result.has_value(); });
    }
    if (!result) return Status(Reason::kStopped, "no longer wanted");
    return *std::move(result);
  }
};

Status as_manifest(Status status, const std::string& url) {
  if (status.reason() == Reason::kMediaEncoding) return {Reason::kManifest, status.message()};
  if (status.reason() != Reason::kMediaChanged) return status;
  return {Reason::kManifest, url + " changed while it was read"};
}

}  // namespace

Status download(Fetcher& fetcher, const std::string& url, const std::string& path, std::stop_token stop,
                const DownloadProgress& progress, const std::string& if_match) {
  PartialFile file(path);
  STOKER_CHECKED(file.opened());
  FetchRequest first;
  first.url = url;
  first.length = kPartBytes;
  first.as_stored = true;  // in parts; whoever reads the file unpacks it
  first.if_match = if_match;
  Result<FetchedObject> beginning = fetcher.fetch(first, stop);
  if (!beginning.ok()) return as_manifest(std::move(beginning).status(), url);
  const FetchedObject begin = std::move(beginning).value();
  STOKER_CHECKED(file.append(begin.bytes.bytes()));
  const std::uint64_t total = begin.total_bytes;
  std::uint64_t done = begin.bytes.size();
  std::uint64_t asked = done;
  if (progress) progress(done, total);

  std::stop_source cancel;  // an error of one part ends the others
  std::deque<std::shared_ptr<Part>> parts;
  const auto end = [&](Status status) {
    cancel.request_stop();
    return status;
  };
  while (done < total) {
    while (asked < total && parts.size() < kPartsInFlight) {
      FetchRequest request;
      request.url = url;
      request.offset = asked;
      request.length = std::min(kPartBytes, total - asked);
      request.if_match = begin.etag;
      request.as_stored = true;
      request.stop = cancel.get_token();
      auto part = std::make_shared<Part>();
      parts.push_back(part);
      asked += *request.length;
      fetcher.submit(std::move(request), [part](Result<FetchedObject> result) {
        MutexLock lock(part->mu);
        part->result = std::move(result);
        part->arrived.notify_all();
      });
    }
    Result<FetchedObject> object = parts.front()->wait(stop);
    parts.pop_front();
    if (!object.ok()) return end(as_manifest(std::move(object).status(), url));
    const std::uint64_t expected = std::min(kPartBytes, total - done);
    if (object->total_bytes != total || object->bytes.size() != expected)
      return end({Reason::kManifest, url + " changed while it was read"});
    if (Status written = file.append(object->bytes.bytes()); !written.ok()) return end(std::move(written));
    done += expected;
    if (progress) progress(done, total);
  }
  return file.keep();
}

}  // namespace stoker

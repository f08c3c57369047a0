#include "source/file/file_source.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include <fmt/format.h>

#include "exec/owned_fd.h"

namespace stoker {
namespace {

constexpr std::size_t kPiece = std::size_t{8} << 20;  // between two looks at the stop token

Status error_of(int error, const Location& at) {
  const std::string text = std::generic_category().message(error);
  switch (error) {
    case ENAMETOOLONG:
      return {Reason::kMediaNotFound,
              at.shown() + ": " + text +
                  "; if it is base64, write data:image/...;base64, in front, or give it in a field for base64"};
    case ENOENT:
    case ENOTDIR:
    case ELOOP:
      return {Reason::kMediaNotFound, at.shown() + ": " + text};
    case EACCES:
    case EPERM:
      return {Reason::kFetchDenied, at.shown() + ": " + text};
    case EMFILE:
    case ENFILE: {
      rlimit limit{};
      getrlimit(RLIMIT_NOFILE, &limit);
      return {Reason::kFetchFdLimit, fmt::format("{}: {} (ulimit -n is {})", at.shown(), text, limit.rlim_cur)};
    }
    default:
      return {Reason::kFetchIo, at.shown() + ": " + text};
  }
}

}  // namespace

Result<FetchedObject> FileSource::read(const FetchRequest& request, const Location& at, std::stop_token stop) const {
  if (at.key.find('\0') != std::string::npos)
    return Status(Reason::kMediaNotFound, at.shown() + ": no file name holds a zero byte");
  // NONBLOCK: opening a named pipe must not wait for a writer. Plain files do not care.
  const OwnedFd file(open(at.key.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.is_open()) return error_of(errno, at);
  struct stat info {};
  if (fstat(file.get(), &info) != 0) return error_of(errno, at);
  if (!S_ISREG(info.st_mode)) {
    return Status(Reason::kMediaNotFound,
                  at.shown() + (S_ISDIR(info.st_mode) ? ": a folder, not a file" : ": not a plain file"));
  }
  const auto size = static_cast<std::uint64_t>(info.st_size);
  const std::uint64_t begin = std::min(request.offset, size);
  const std::uint64_t n_bytes = std::min(request.length.value_or(UINT64_MAX), size - begin);
  if (n_bytes > max_object_bytes_) {
    return Status(Reason::kMediaTooLarge,
                  fmt::format("{}: {} bytes are more than the limit of {}", at.shown(), n_bytes, max_object_bytes_));
  }
  FetchedObject object;
  object.total_bytes = size;
  object.etag = fmt::format("\"{}-{}.{:09}\"", size, info.st_mtim.tv_sec, info.st_mtim.tv_nsec);
  if (!request.if_match.empty() && request.if_match != object.etag) {
    return Status(Reason::kMediaChanged,
                  fmt::format("{}: it is now {}, not {}", at.shown(), object.etag, request.if_match));
  }
  STOKER_TRY(object.bytes, make_buffer(request.lease_for, static_cast<std::size_t>(n_bytes)));
  std::uint64_t done = 0;
  while (done < n_bytes) {
    if (stop.stop_requested() || request.stop.stop_requested()) return Status(Reason::kStopped, "no longer wanted");
    const ssize_t n = pread(file.get(), object.bytes.data() + done,
                            static_cast<std::size_t>(std::min<std::uint64_t>(kPiece, n_bytes - done)),
                            static_cast<off_t>(begin + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return error_of(errno, at);
    // It shrank under our hands: somebody is rewriting it. Read again later, when it is whole.
    if (n == 0)
      return Status(Reason::kFetchShortBody, fmt::format("{}: {} of {} bytes came", at.shown(), done, n_bytes));
    done += static_cast<std::uint64_t>(n);
  }
  return object;
}

}  // namespace stoker

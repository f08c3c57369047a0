#pragma once

#include <cstdint>

#include "source/blocking_pool.h"

namespace stoker {

/// Paths and file:// URLs. The tag is size and modification time: what a rewritten file changes.
///
/// @return of `read`: MEDIA_NOT_FOUND if there is no such file, or it is a folder or a device; FETCH_DENIED;
/// FETCH_FD_LIMIT (EMFILE: the
///         process's trouble, never the sample's); FETCH_IO; MEDIA_CHANGED; MEDIA_TOO_LARGE.
class FileSource final : public BlockingSource {
 public:
  explicit FileSource(std::uint64_t max_object_bytes) : max_object_bytes_(max_object_bytes) {}
  Result<FetchedObject> read(const FetchRequest& request, const Location& at, std::stop_token stop) const override;

 private:
  const std::uint64_t max_object_bytes_;
};

}  // namespace stoker

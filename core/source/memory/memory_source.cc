#include "source/memory/memory_source.h"

#include <algorithm>
#include <cstring>

#include "base/hash.h"

namespace stoker {

Result<FetchedObject> MemorySource::read(const FetchRequest& request, const Location& at, std::stop_token) const {
  const std::string* whole = objects_ ? objects_->find(at.key) : nullptr;
  if (!whole) return Status(Reason::kMediaNotFound, at.shown() + ": no such object in memory");
  const std::uint64_t begin = std::min<std::uint64_t>(request.offset, whole->size());
  const std::uint64_t n_bytes = std::min<std::uint64_t>(request.length.value_or(UINT64_MAX), whole->size() - begin);
  FetchedObject object;
  object.etag = '"' + sha256_hex(*whole) + '"';
  if (!request.if_match.empty() && request.if_match != object.etag)
    return Status(Reason::kMediaChanged, at.shown() + ": it changed");
  object.total_bytes = whole->size();
  STOKER_TRY(object.bytes, make_buffer(request.lease_for, static_cast<std::size_t>(n_bytes)));
  if (n_bytes > 0) std::memcpy(object.bytes.data(), whole->data() + begin, static_cast<std::size_t>(n_bytes));
  return object;
}

}  // namespace stoker

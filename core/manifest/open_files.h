#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/mutex.h"
#include "base/result.h"
#include "manifest/files.h"

namespace stoker {

/// Of many files the last few open, so that a pattern of thousands of manifests stays below what a process may have
/// open. Threads: any.
class OpenFiles {
 public:
  explicit OpenFiles(std::size_t most) : most_(most) {}

  /// The file, opened anew if it was let go. The handle may be read from for as long as it is held.
  /// @return MANIFEST if it cannot be opened, or is no longer the file of that stamp.
  Result<std::shared_ptr<const FileHandle>> open(const std::string& path, const FileStamp& stamp) STOKER_EXCLUDES(mu_);

 private:
  using Entry = std::pair<std::string, std::shared_ptr<const FileHandle>>;  // path

  const std::size_t most_;

  Mutex mu_;
  std::list<Entry> files_ STOKER_GUARDED_BY(mu_);  // last used first
  std::unordered_map<std::string, std::list<Entry>::iterator> by_path_ STOKER_GUARDED_BY(mu_);
};

}  // namespace stoker

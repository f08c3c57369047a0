#include "manifest/open_files.h"

#include <fcntl.h>

#include <fmt/format.h>

namespace stoker {

Result<std::shared_ptr<const FileHandle>> OpenFiles::open(const std::string& path, const FileStamp& stamp) {
  {
    MutexLock lock(mu_);
    if (const auto found = by_path_.find(path); found != by_path_.end()) {
      files_.splice(files_.begin(), files_, found->second);
      return files_.front().second;
    }
  }
  auto file = std::make_shared<const FileHandle>(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file->is_open()) return Status(Reason::kManifest, fmt::format("{}: {}", path, errno_text()));
  STOKER_TRY(const FileStamp now, stamp_of(*file, path));
  if (now != stamp) return Status(Reason::kManifest, path + ": the file changed since it was indexed");
  MutexLock lock(mu_);
  if (by_path_.contains(path)) return std::shared_ptr<const FileHandle>(std::move(file));  // another thread's is kept
  files_.emplace_front(path, file);
  by_path_[path] = files_.begin();
  if (files_.size() > most_) {
    by_path_.erase(files_.back().first);
    files_.pop_back();
  }
  return std::shared_ptr<const FileHandle>(std::move(file));
}

}  // namespace stoker

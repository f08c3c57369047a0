#include "pipeline/plan_digests.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/rng.h"

namespace stoker {

PlanDigests::PlanDigests(const std::string& index_dir, const std::string& fingerprint) {
  if (!index_dir.empty()) folder_ = (std::filesystem::path(index_dir) / "plans" / fingerprint).string();
}

Status PlanDigests::check(std::uint64_t window, const std::string& digest) const {
  if (folder_.empty()) return {};
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  if (error) return Status(Reason::kIndexDir, fmt::format("cannot make {}: {}", folder_, error.message()));
  const std::string path = fmt::format("{}/window-{}", folder_, window);
  // Written beside and linked into place, so that nobody reads half a digest; link() fails if another rank was first.
  // The name is nobody else's: ranks may be threads of one process, or processes with the same id on two nodes.
  static std::atomic<std::uint64_t> n_made{0};
  const std::uint64_t now = static_cast<std::uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
  const std::string mine = fmt::format("{}.{}-{}-{:x}", path, getpid(), n_made++, mix64(now));
  {
    std::ofstream out(mine, std::ios::binary);
    out << digest;
    if (!out.flush()) return Status(Reason::kIndexDir, fmt::format("cannot write {}", mine));
  }
  const int linked = link(mine.c_str(), path.c_str());
  const int why = errno;
  unlink(mine.c_str());
  if (linked == 0) return {};
  if (why != EEXIST) return Status(Reason::kIndexDir, fmt::format("cannot write {}: {}", path, std::strerror(why)));
  std::ifstream in(path, std::ios::binary);
  const std::string theirs{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  if (theirs == digest) return {};
  return Status(Reason::kPlanMismatch, fmt::format("window {} was planned as {} here and as {} by another rank or an "
                                                   "earlier attempt with the same settings: the ranks "
                                                   "see different data (a media file that is missing or has another "
                                                   "size for one of them?). If the data was changed on "
                                                   "purpose, remove {}",
                                                   window, digest, theirs, folder_));
}

}  // namespace stoker

#include "pipeline/dataset.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/hash.h"
#include "base/log.h"
#include "source/url.h"

namespace stoker {
namespace {

namespace fs = std::filesystem;

std::string folder_of(const std::string& url) {
  const std::size_t slash = url.rfind('/');
  return slash == std::string::npos ? std::string() : url.substr(0, slash);
}

/// A local, seekable copy of a remote manifest, named after what it is a copy of: address, size and ETag. A copy is
/// never replaced once it has its name, since other ranks read from it; whoever comes second takes the first one's.
/// Without an ETag nobody can tell whether a copy is still true, so each process makes its own.
Result<std::string> mirror(const std::string& url, const LoaderSettings& settings, Fetcher& fetcher,
                           std::stop_token stop, const std::function<void(std::string_view)>& on_progress) {
  const fs::path folder = fs::path(settings.index_dir) / "mirror";
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return Status(Reason::kIndexDir, fmt::format("cannot make {}: {}", folder.string(), error.message()));
  STOKER_TRY(const FetchedObject head, fetcher.fetch({.url = url, .length = 1, .if_match = "", .stop = stop}, stop));
  const std::string what = fmt::format("{}\n{}\n{} {}", settings.storage.endpoint, url, head.total_bytes, head.etag);
  const std::string name = sha256_hex(what).substr(0, 32);
  const fs::path shared = folder / (name + ".jsonl");
  // Unique among processes of several nodes and loaders of one process.
  const fs::path own =
      folder / fmt::format("{}-{}-{:x}.jsonl", name, getpid(), reinterpret_cast<std::uintptr_t>(&fetcher));
  const bool is_shared = !head.etag.empty();
  if (is_shared && fs::file_size(shared, error) == head.total_bytes && !error) return shared.string();
  STOKER_CHECKED(download(fetcher, url, own.string(), stop, [&](std::uint64_t done, std::uint64_t total) {
    on_progress(fmt::format("mirroring {}: {} of {} bytes", url, done, total));
  }));
  if (!is_shared) return own.string();
  const int linked = link(own.c_str(), shared.c_str());
  const int why = errno;
  unlink(own.c_str());
  if (linked != 0 && why != EEXIST) {
    return Status(Reason::kIndexDir, fmt::format("cannot make {}: {}", shared.string(), std::strerror(why)));
  }
  return shared.string();
}

}  // namespace

Result<Dataset> Dataset::open(const LoaderSettings& settings, Fetcher& fetcher, std::stop_token stop,
                              const std::function<void(std::string_view)>& on_progress) {
  std::vector<Manifest> manifests;
  std::vector<std::string> names;
  std::vector<std::string> roots;
  std::vector<SourceRows> sources;
  for (const DataSettings& data : settings.output.data) {
    STOKER_TRY(const Location where, parse_location(data.manifest));
    std::string path = where.key;
    if (where.kind != Location::Kind::kFile) {
      auto local = mirror(data.manifest, settings, fetcher, stop, on_progress);
      if (!local.ok()) {
        // Nothing to skip here: without its manifest there is no run.
        const Status why = std::move(local).status();
        const Reason reason = why.code() == Code::kBadSample ? Reason::kManifest : why.reason();
        return Status(reason, why.message()).with("manifest " + data.manifest);
      }
      path = std::move(local).value();
    }
    ManifestOptions options{.index_dir = settings.index_dir,
                            .on_progress = [&](std::uint64_t done, std::uint64_t total) {
                              on_progress(fmt::format("scanning {}: {} of {} bytes", data.manifest, done, total));
                            }};
    STOKER_TRY(Manifest manifest, Manifest::open(path, options, stop));
    sources.push_back({manifest.fingerprint(), manifest.n_rows()});
    manifests.push_back(std::move(manifest));
    names.push_back(data.manifest);
    roots.push_back(data.media_root.empty() ? folder_of(data.manifest) : data.media_root);
  }
  STOKER_TRY(Order order,
             Order::make(std::move(sources), settings.output.seed, settings.output.shuffle, settings.output.epochs));
  return Dataset(std::move(manifests), std::move(names), std::move(roots), std::move(order));
}

std::string Dataset::fingerprint() const {
  Digest digest;
  for (const Manifest& m : manifests_) digest.add(m.fingerprint());
  return digest.hex();
}

}  // namespace stoker

#include "pipeline/dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
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

std::string read_small_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

/// A local, seekable copy of a remote manifest; made again only when the object's tag or size changed.
Result<std::string> mirror(const std::string& url, const LoaderSettings& settings, Fetcher& fetcher,
                           std::stop_token stop, const std::function<void(std::string_view)>& on_progress) {
  const fs::path folder = fs::path(settings.index_dir) / "mirror";
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return Status(Reason::kIndexDir, fmt::format("cannot make {}: {}", folder.string(), error.message()));
  const fs::path file = folder / (sha256_hex(settings.storage.endpoint + "\n" + url).substr(0, 32) + ".jsonl");
  const fs::path tag_file = file.string() + ".etag";
  STOKER_TRY(const FetchedObject head, fetcher.fetch({.url = url, .length = 1, .if_match = "", .stop = stop}, stop));
  const std::string tag = fmt::format("{} {}", head.total_bytes, head.etag);
  if (!head.etag.empty() && read_small_file(tag_file) == tag && fs::file_size(file, error) == head.total_bytes &&
      !error)
    return file.string();
  STOKER_CHECKED(download(fetcher, url, file.string(), stop, [&](std::uint64_t done, std::uint64_t total) {
    on_progress(fmt::format("mirroring {}: {} of {} bytes", url, done, total));
  }));
  std::ofstream(tag_file, std::ios::binary) << tag;
  return file.string();
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

#include "pipeline/dataset.h"

#include <fmt/format.h>
#include <glob.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <utility>

#include "base/hash.h"
#include "base/log.h"
#include "manifest/row.h"
#include "source/url.h"

namespace stoker {
namespace {

namespace fs = std::filesystem;

std::string folder_of(const std::string& url) {
  const std::size_t slash = url.rfind('/');
  return slash == std::string::npos ? std::string() : url.substr(0, slash);
}

/// Buckets are never listed: what a listing gives changes from hour to hour, and a run would not know its own data
/// again.
Status not_listed(const std::string& name, std::string_view what) {
  return {Reason::kManifest, fmt::format("\"{}\" {}, and buckets are never listed: name each manifest, an entry of "
                                         "`data` each",
                                         name, what)};
}

bool has_pattern(const std::string& name) { return name.find_first_of("*?[") != std::string::npos; }

bool is_prefix(const std::string& name) {
  constexpr std::string_view kScheme = "s3://";
  return name.starts_with(kScheme) && (name.ends_with('/') || name.find('/', kScheme.size()) == std::string::npos);
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
  STOKER_TRY(const FetchedObject head,
             fetcher.fetch({.url = url, .length = 1, .if_match = "", .stop = stop, .as_stored = true}, stop));
  const std::string what = fmt::format("{}\n{}\n{} {}", settings.storage.endpoint, url, head.total_bytes, head.etag);
  const std::string name = sha256_hex(what).substr(0, 32);
  const fs::path shared = folder / (name + ".jsonl");
  // Unique among processes of several nodes and loaders of one process.
  const fs::path own =
      folder / fmt::format("{}-{}-{:x}.jsonl", name, getpid(), reinterpret_cast<std::uintptr_t>(&fetcher));
  const bool is_shared = !head.etag.empty();
  if (is_shared && fs::file_size(shared, error) == head.total_bytes && !error) return shared.string();
  const std::string strong_tag = head.etag.starts_with("W/") ? "" : head.etag;  // no condition holds for a weak one
  const auto tell = [&](std::uint64_t done, std::uint64_t total) {
    on_progress(fmt::format("mirroring {}: {} of {} bytes", url, done, total));
  };
  STOKER_CHECKED(download(fetcher, url, own.string(), stop, tell, strong_tag));
  if (!is_shared) return own.string();
  const int linked = link(own.c_str(), shared.c_str());
  const int why = errno;
  unlink(own.c_str());
  if (linked != 0 && why != EEXIST) {
    return Status(Reason::kIndexDir, fmt::format("cannot make {}: {}", shared.string(), std::strerror(why)));
  }
  return shared.string();
}

// A name with *, ? or [ in it is a pattern, unless a file has just that name. Sorted by bytes: the same on every node.
Result<std::vector<std::string>> files_of(const std::string& name) {
  std::error_code ignored;
  if (!has_pattern(name) || fs::exists(name, ignored)) return std::vector<std::string>{name};
  glob_t found{};
  const int failed = ::glob(name.c_str(), GLOB_ERR | GLOB_NOSORT, nullptr, &found);
  std::vector<std::string> files;
  for (std::size_t i = 0; failed == 0 && i < found.gl_pathc; ++i) {
    if (!fs::is_directory(found.gl_pathv[i], ignored)) files.emplace_back(found.gl_pathv[i]);
  }
  ::globfree(&found);
  if (failed != 0 && failed != GLOB_NOMATCH) {
    return Status(Reason::kManifest, fmt::format("{}: a folder of this pattern cannot be read", name));
  }
  if (files.empty()) return Status(Reason::kManifest, fmt::format("{}: no file has such a name", name));
  std::sort(files.begin(), files.end());
  return files;
}

// Which shapes the first rows have: what a reader of the log can hold against what they meant.
void tell_shapes(const Manifest& manifest, const std::string& name, const RowOptions& options) {
  constexpr std::uint64_t kRowsRead = 16;
  std::map<std::string, int> n_of;
  std::string buffer;
  const std::uint64_t n = std::min(manifest.n_rows(), kRowsRead);
  for (std::uint64_t row = 0; row < n; ++row) {
    RowNotes notes;
    const auto line = manifest.read(row, buffer);
    const bool is_read = line.ok() && parse_row(*line, options, &notes).ok();
    ++n_of[is_read ? fmt::format("{} form", name_of(notes.row_shape)) : "not readable"];
  }
  std::string shapes;
  for (const auto& [shape, count] : n_of) {
    shapes += shapes.empty() ? "" : ", ";
    shapes += n_of.size() == 1 ? shape : fmt::format("{} {}", count, shape);
  }
  log(LogLevel::kInfo,
      fmt::format("{}: {} rows ({}); the first {}: {}", name, manifest.n_rows(), manifest.form(), n, shapes));
}

}  // namespace

Result<Dataset::Source> Dataset::open_source(const DataSettings& data, const std::string& name,
                                             const LoaderSettings& settings, Fetcher& fetcher, std::stop_token stop,
                                             const std::function<void(std::string_view)>& on_progress) {
  if (is_prefix(name)) return not_listed(name, "is a prefix");
  STOKER_TRY(const Location where, parse_location(name));
  std::string path = where.key;
  if (where.kind != Location::Kind::kFile) {
    auto local = mirror(name, settings, fetcher, stop, on_progress);
    if (!local.ok()) {
      // Nothing to skip here: without its manifest there is no run.
      const Status why = std::move(local).status();
      if (why.reason() == Reason::kMediaNotFound && where.kind == Location::Kind::kS3 && has_pattern(name)) {
        return not_listed(name, "is no object's name");
      }
      const Reason reason = why.code() == Code::kBadSample ? Reason::kManifest : why.reason();
      return Status(reason, why.message()).with("manifest " + name);
    }
    path = std::move(local).value();
  }
  ManifestOptions options{.index_dir = settings.index_dir,
                          .max_row_bytes = data.max_row_bytes,
                          .on_progress = [&](std::uint64_t done, std::uint64_t total) {
                            on_progress(fmt::format("scanning {}: {} of {} bytes", name, done, total));
                          }};
  STOKER_TRY(Manifest manifest, Manifest::open(path, options, stop));
  tell_shapes(manifest, name, data.rows);
  return Source{std::move(manifest), name, data.media_root.empty() ? folder_of(name) : data.media_root, data.rows};
}

Result<Dataset> Dataset::open(const LoaderSettings& settings, Fetcher& fetcher, std::stop_token stop,
                              const std::function<void(std::string_view)>& on_progress) {
  std::vector<Source> sources;
  std::vector<SourceRows> rows;
  std::vector<Share> shares;
  std::vector<std::uint64_t> n_rows;  // (entries of the settings)
  std::vector<MixtureEntry> mixture;
  for (const DataSettings& data : settings.output.data) {
    std::vector<std::string> names = {data.manifest};
    if (data.manifest.find("://") == std::string::npos) {
      STOKER_TRY(names, files_of(data.manifest));
    }
    shares.push_back(data.share);
    n_rows.push_back(0);
    mixture.push_back({.n_sources = names.size()});
    for (const std::string& name : names) {
      STOKER_TRY(Source source, open_source(data, name, settings, fetcher, stop, on_progress));
      rows.push_back({source.manifest.fingerprint(), source.manifest.n_rows()});
      n_rows.back() += source.manifest.n_rows();
      sources.push_back(std::move(source));
    }
  }
  STOKER_TRY(const auto n_samples, samples_per_epoch(shares, n_rows));
  for (std::size_t i = 0; i < mixture.size(); ++i) mixture[i].samples_per_epoch = n_samples[i];
  STOKER_TRY(Order order, Order::make(std::move(rows), settings.output.seed, settings.output.shuffle,
                                      settings.output.epochs, mixture));
  return Dataset(std::move(sources), std::move(order), static_cast<std::uint64_t>(settings.output.window_samples));
}

std::uint64_t Dataset::n_windows() const {
  const auto size = order_.size();
  return size ? (*size + window_samples_ - 1) / window_samples_ : UINT64_MAX;
}

Result<OrderWindow> Dataset::window(std::uint64_t window, const std::stop_token& stop) const {
  OrderWindow out{.window = window, .places = {}};
  const std::uint64_t first = window * window_samples_;
  const std::uint64_t n = order_.size() ? std::min(window_samples_, *order_.size() - first) : window_samples_;
  out.places.reserve(n);
  std::vector<bool> is_checked(sources_.size(), false);
  for (std::uint64_t i = first; i < first + n; ++i) {
    STOKER_TRY(const OrderEntry entry, at(i, stop));
    if (!is_checked[entry.source]) STOKER_CHECKED(sources_[entry.source].manifest.check_unchanged());
    is_checked[entry.source] = true;
    out.places.push_back({i, entry});
  }
  out.n_until_end = first + n;
  return out;
}

Result<OrderEntry> Dataset::at(std::uint64_t order_index, const std::stop_token& /*stop*/) const {
  if (order_.size() && order_index >= *order_.size()) {
    return Status(Reason::kSettings, fmt::format("there is no sample {} in the order", order_index));
  }
  return order_.at(order_index);
}

std::string Dataset::fingerprint() const {
  Digest digest;
  for (const Source& source : sources_) digest.add(source.manifest.fingerprint());
  return digest.hex();
}

}  // namespace stoker

#include "pipeline/dataset.h"

#include <fmt/format.h>
#include <glob.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <thread>
#include <utility>

#include "base/hash.h"
#include "base/log.h"
#include "exec/cpu.h"
#include "manifest/claim.h"
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
  // Unique among processes of several nodes, loaders of one process, and entries of one loader.
  static std::atomic<std::uint64_t> n_made{0};
  const fs::path own =
      folder / fmt::format("{}-{}-{:x}-{}.jsonl", name, getpid(), reinterpret_cast<std::uintptr_t>(&fetcher), n_made++);
  const bool is_shared = !head.etag.empty();
  std::unique_ptr<Claim> claim;
  if (is_shared) {
    const auto is_there = [&] {
      std::error_code none;
      return fs::file_size(shared, none) == head.total_bytes && !none;
    };
    const auto tell_of_other = [&](std::uint64_t done, std::uint64_t total) {
      on_progress(fmt::format("another process mirrors {}: {} of {} bytes", url, done, total));
    };
    STOKER_TRY(claim, Claim::take((folder / (name + ".claim")).string(), is_there, tell_of_other, stop));
    if (claim == nullptr) return shared.string();
  }
  const std::string strong_tag = head.etag.starts_with("W/") ? "" : head.etag;  // no condition holds for a weak one
  const auto tell = [&](std::uint64_t done, std::uint64_t total) {
    on_progress(fmt::format("mirroring {}: {} of {} bytes", url, done, total));
    if (claim != nullptr) claim->tell(done, total);
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
                                             const LoaderSettings& settings,
                                             const std::shared_ptr<OpenFiles>& open_files, Fetcher& fetcher,
                                             std::stop_token stop,
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
  ManifestOptions options{
      .index_dir = settings.index_dir,
      .max_row_bytes = data.max_row_bytes,
      .on_progress =
          [&](std::uint64_t done, std::uint64_t total) {
            on_progress(fmt::format("scanning {}: {} of {} bytes", name, done, total));
          },
      .row_numbers = settings.output.shuffle == Shuffle::kChunked ? RowNumbers::kOffsets : RowNumbers::kCounted,
      .split = settings.output.split,
      .open_files = open_files};
  STOKER_TRY(Manifest manifest, Manifest::open(path, options, stop));
  tell_shapes(manifest, name, data.rows);
  return Source{std::move(manifest), name, data.media_root.empty() ? folder_of(name) : data.media_root, data.rows};
}

Result<std::vector<Dataset::Source>> Dataset::open_sources(const std::vector<Name>& names,
                                                           const LoaderSettings& settings, Fetcher& fetcher,
                                                           const std::stop_token& stop,
                                                           const std::function<void(std::string_view)>& on_progress) {
  constexpr std::size_t kMostThreads = 8;
  constexpr std::size_t kMostOpenFiles = 256;
  const auto open_files = std::make_shared<OpenFiles>(kMostOpenFiles);
  std::vector<std::optional<Result<Source>>> opened(names.size());
  std::atomic<std::size_t> next = 0;
  std::stop_source failed;
  const std::stop_callback pass_on(stop, [&] { failed.request_stop(); });
  const auto open_some = [&] {
    for (std::size_t i = next++; i < names.size() && !failed.stop_requested(); i = next++) {
      opened[i] =
          open_source(*names[i].data, names[i].name, settings, open_files, fetcher, failed.get_token(), on_progress);
      if (!opened[i]->ok()) failed.request_stop();
    }
  };
  {
    std::vector<std::jthread> others;
    for (std::size_t i = 1; i < std::min(names.size(), kMostThreads); ++i) {
      others.emplace_back([&] {
        become_background_thread("stoker-open");
        open_some();
      });
    }
    open_some();
  }
  // What failed, not what was stopped for it.
  Status status = stop.stop_requested() ? Status(Reason::kStopped, "stopped while manifests were opened") : Status();
  std::vector<Source> sources;
  for (auto& each : opened) {
    if (each && each->ok()) {
      sources.push_back(std::move(*each).value());
    } else if (each && (status.ok() || status.reason() == Reason::kStopped)) {
      status = std::move(*each).status();
    }
  }
  if (!status.ok()) return status;
  return sources;
}

Result<Dataset> Dataset::open(const LoaderSettings& settings, Fetcher& fetcher, std::stop_token stop,
                              const std::function<void(std::string_view)>& on_progress) {
  Dataset dataset;
  dataset.uses_held_out_ = settings.output.uses_held_out;
  dataset.window_samples_ = static_cast<std::uint64_t>(settings.output.window_samples);
  std::vector<Name> names;
  std::vector<std::size_t> n_files;  // (entries of the settings)
  for (const DataSettings& data : settings.output.data) {
    std::vector<std::string> found = {data.manifest};
    if (data.manifest.find("://") == std::string::npos) {
      STOKER_TRY(found, files_of(data.manifest));
    }
    n_files.push_back(found.size());
    for (std::string& name : found) names.push_back({&data, std::move(name)});
  }
  STOKER_TRY(dataset.sources_, open_sources(names, settings, fetcher, stop, on_progress));
  const OutputSettings& output = settings.output;
  STOKER_CHECKED(output.shuffle == Shuffle::kChunked ? dataset.order_chunks(output)
                                                     : dataset.order_rows(output, n_files));
  return dataset;
}

Status Dataset::order_rows(const OutputSettings& output, const std::vector<std::size_t>& n_files) {
  std::vector<SourceRows> rows;
  std::vector<Share> shares;
  std::vector<std::uint64_t> n_rows;  // (entries of the settings)
  std::vector<MixtureEntry> mixture;
  std::uint64_t n_before_split = 0;
  for (std::size_t i = 0; i < n_files.size(); ++i) {
    shares.push_back(output.data[i].share);
    n_rows.push_back(0);
    mixture.push_back({.n_sources = n_files[i]});
    for (std::size_t k = 0; k < n_files[i]; ++k) {
      const Manifest& manifest = sources_[rows.size()].manifest;
      rows.push_back({manifest.fingerprint(), manifest.n_rows(uses_held_out_)});
      n_rows.back() += rows.back().n_rows;
      n_before_split += manifest.n_rows();
    }
  }
  if (n_before_split > 0 && std::all_of(n_rows.begin(), n_rows.end(), [](std::uint64_t n) { return n == 0; })) {
    return {Reason::kNoData, fmt::format("split: none of {} rows is on the side `{}`", n_before_split,
                                         uses_held_out_ ? "held_out" : "train")};
  }
  STOKER_TRY(const auto n_samples, samples_per_epoch(shares, n_rows));
  for (std::size_t i = 0; i < mixture.size(); ++i) mixture[i].samples_per_epoch = n_samples[i];
  STOKER_TRY(order_, Order::make(std::move(rows), output.seed, output.shuffle, output.epochs, mixture));
  return {};
}

Status Dataset::order_chunks(const OutputSettings& output) {
  const bool is_each_once =
      std::all_of(output.data.begin(), output.data.end(), [](const DataSettings& d) { return d.share == Share(); });
  if (!is_each_once) {
    return {Reason::kSettings,
            "shuffle: chunked takes every row once an epoch: weight, repeat and samples need the number of rows, "
            "which nobody counts; use shuffle: rows with them"};
  }
  std::vector<SourceBytes> sources;
  for (const Source& source : sources_) {
    const Manifest& m = source.manifest;
    constexpr std::uint64_t kWhole = 1'000'000;
    const std::uint64_t held_out = output.split ? output.split->held_out_millionths : 0;
    const double share = static_cast<double>(uses_held_out_ ? held_out : kWhole - held_out) / double{kWhole};
    sources.push_back(
        {m.fingerprint(), m.size_bytes(), static_cast<std::uint64_t>(static_cast<double>(m.about_n_rows()) * share)});
  }
  STOKER_TRY(ChunkOrder order, ChunkOrder::make(sources, output.seed, output.chunks, window_samples_, output.epochs));
  chunks_.emplace(std::move(order), uses_held_out_);
  return {};
}

std::uint64_t Dataset::n_windows() const {
  if (chunks_) return chunks_->order().n_windows();
  const auto size = order_->size();
  return size ? (*size + window_samples_ - 1) / window_samples_ : UINT64_MAX;
}

Result<OrderWindow> Dataset::window(std::uint64_t window, const std::stop_token& stop) const {
  OrderWindow out{.window = window, .places = {}};
  if (chunks_) {
    STOKER_TRY(out, chunks_->window(window, manifests(), stop));
  } else {
    const std::uint64_t first = window * window_samples_;
    out.n_until_end = order_->size() ? std::min(first + window_samples_, *order_->size()) : first + window_samples_;
    out.places.reserve(out.n_until_end - first);
    for (std::uint64_t i = first; i < out.n_until_end; ++i) {
      STOKER_TRY(const OrderEntry entry, at(i, stop));
      out.places.push_back({i, entry});
    }
  }
  std::vector<bool> is_checked(sources_.size(), false);
  for (const OrderWindow::Place& place : out.places) {
    const std::uint32_t source = place.entry.source;
    if (!is_checked[source]) STOKER_CHECKED(sources_[source].manifest.check_unchanged());
    is_checked[source] = true;
  }
  return out;
}

Result<OrderEntry> Dataset::at(std::uint64_t order_index, const std::stop_token& stop) const {
  if (chunks_) return chunks_->at(order_index, manifests(), stop);
  if (order_->size() && order_index >= *order_->size()) {
    return Status(Reason::kSettings, fmt::format("there is no sample {} in the order", order_index));
  }
  OrderEntry entry = order_->at(order_index);
  entry.row = sources_[entry.source].manifest.nth_row(uses_held_out_, entry.row);
  return entry;
}

std::vector<const Manifest*> Dataset::manifests() const {
  std::vector<const Manifest*> out;
  for (const Source& source : sources_) out.push_back(&source.manifest);
  return out;
}

std::string Dataset::fingerprint() const {
  Digest digest;
  for (const Source& source : sources_) digest.add(source.manifest.fingerprint());
  return digest.hex();
}

}  // namespace stoker

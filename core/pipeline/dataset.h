#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "manifest/index.h"
#include "pipeline/chunk_windows.h"
#include "pipeline/settings.h"
#include "plan/order.h"
#include "source/source.h"

namespace stoker {

/// The manifests of a run, opened, and the order over their rows. Immutable once open. Threads: any.
class Dataset {
 public:
  /// Opens every manifest, those that a pattern names in the order of their names; one on S3 is first mirrored into the
  /// index directory, where a mirror with the same ETag is used again. `on_progress` gets a line now and then, from any
  /// of several threads. @return MANIFEST, INDEX_DIR, NO_DATA, FETCH_*, STOPPED.
  static Result<Dataset> open(const LoaderSettings& settings, Fetcher& fetcher, std::stop_token stop,
                              const std::function<void(std::string_view)>& on_progress);

  /// What stands in a window. Windows of the same number are the same on every rank, for every dp_size.
  /// @return MANIFEST if one of its manifests is no longer what was opened; STOPPED. Blocks for the disk.
  Result<OrderWindow> window(std::uint64_t window, const std::stop_token& stop) const;
  /// Of a finite order; else UINT64_MAX.
  std::uint64_t n_windows() const;
  /// What `order_index` of a window's place stands for. @return SETTINGS if there is none; as window().
  Result<OrderEntry> at(std::uint64_t order_index, const std::stop_token& stop = {}) const;
  /// Rows of an epoch; UINT64_MAX where nobody counted them.
  std::uint64_t rows_per_pass() const { return chunks_ ? UINT64_MAX : order_->rows_per_pass(); }
  /// Where nobody counted the rows; else UINT64_MAX.
  std::uint64_t windows_per_pass() const { return chunks_ ? chunks_->order().windows_per_pass() : UINT64_MAX; }
  /// Not for Shuffle::kChunked. Its rows are numbered on their side of a split: at() has their numbers in the manifest.
  const Order& order() const { return *order_; }
  /// Manifests; of a pattern each file is one.
  std::size_t n_sources() const { return sources_.size(); }
  const Manifest& manifest(std::uint32_t source) const { return sources_[source].manifest; }
  const std::string& media_root(std::uint32_t source) const { return sources_[source].media_root; }
  /// How its rows are read.
  const RowOptions& rows(std::uint32_t source) const { return sources_[source].rows; }
  /// As the settings name it, for messages and ledgers.
  const std::string& name(std::uint32_t source) const { return sources_[source].name; }
  /// Of all contents, in order.
  std::string fingerprint() const;

 private:
  struct Source {
    Manifest manifest;
    std::string name;
    std::string media_root;
    RowOptions rows;
  };
  Dataset() = default;
  Status order_rows(const OutputSettings& output, const std::vector<std::size_t>& n_files);
  Status order_chunks(const OutputSettings& output);
  std::vector<const Manifest*> manifests() const;
  struct Name {
    const DataSettings* data;
    std::string name;  ///< of one manifest
  };
  /// A few at a time: what they wait for is the disk.
  static Result<std::vector<Source>> open_sources(const std::vector<Name>& names, const LoaderSettings& settings,
                                                  Fetcher& fetcher, const std::stop_token& stop,
                                                  const std::function<void(std::string_view)>& on_progress);
  static Result<Source> open_source(const DataSettings& data, const std::string& name, const LoaderSettings& settings,
                                    const std::shared_ptr<OpenFiles>& open_files, Fetcher& fetcher,
                                    std::stop_token stop, const std::function<void(std::string_view)>& on_progress);

  std::vector<Source> sources_;
  std::optional<Order> order_;
  std::optional<ChunkWindows> chunks_;  // instead of it
  bool uses_held_out_ = false;
  std::uint64_t window_samples_ = 1;
};

}  // namespace stoker

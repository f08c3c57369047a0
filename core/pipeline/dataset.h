#pragma once

#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "manifest/index.h"
#include "pipeline/settings.h"
#include "plan/order.h"
#include "source/source.h"

namespace stoker {

/// The manifests of a run, opened, and the order over their rows. Immutable once open. Threads: any.
class Dataset {
 public:
  /// Opens every manifest, those that a pattern names in the order of their names; one on S3 is first mirrored into the
  /// index directory, where a mirror with the same ETag is used again. `on_progress` gets a line now and then. @return
  /// MANIFEST, INDEX_DIR, NO_DATA, FETCH_*, STOPPED.
  static Result<Dataset> open(const LoaderSettings& settings, Fetcher& fetcher, std::stop_token stop,
                              const std::function<void(std::string_view)>& on_progress);

  const Order& order() const { return order_; }
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
  Dataset(std::vector<Source> sources, Order order) : sources_(std::move(sources)), order_(std::move(order)) {}
  static Result<Source> open_source(const DataSettings& data, const std::string& name, const LoaderSettings& settings,
                                    Fetcher& fetcher, std::stop_token stop,
                                    const std::function<void(std::string_view)>& on_progress);

  std::vector<Source> sources_;
  Order order_;
};

}  // namespace stoker

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
  /// Opens every manifest; one on S3 is first mirrored into the index directory, where a mirror with the same ETag is
  /// used again. `on_progress` gets a line now and then. @return MANIFEST, INDEX_DIR, NO_DATA, FETCH_*, STOPPED.
  static Result<Dataset> open(const LoaderSettings& settings, Fetcher& fetcher, std::stop_token stop,
                              const std::function<void(std::string_view)>& on_progress);

  const Order& order() const { return order_; }
  const Manifest& manifest(std::uint32_t source) const { return manifests_[source]; }
  const std::string& media_root(std::uint32_t source) const { return media_roots_[source]; }
  /// As the settings name it, for messages and ledgers.
  const std::string& name(std::uint32_t source) const { return names_[source]; }
  /// Of all contents, in order.
  std::string fingerprint() const;

 private:
  Dataset(std::vector<Manifest> manifests, std::vector<std::string> names, std::vector<std::string> media_roots,
          Order order)
      : manifests_(std::move(manifests)),
        names_(std::move(names)),
        media_roots_(std::move(media_roots)),
        order_(std::move(order)) {}

  std::vector<Manifest> manifests_;
  std::vector<std::string> names_;
  std::vector<std::string> media_roots_;
  Order order_;
};

}  // namespace stoker

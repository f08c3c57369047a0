#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "source/storage_settings.h"

namespace stoker {

/// Through which proxy a URL is asked for. Values hold credentials; messages and logs get `shown` ones only.
/// Threads: any, after `create`.
class Proxies {
 public:
  Proxies() = default;
  /// `storage.proxy` for all URLs but loopback ones ("none": no proxy at all); without it the environment, as curl and
  /// botocore read it: http_proxy, https_proxy, all_proxy and no_proxy, each in lower and then in upper case.
  /// @return SETTINGS for a proxy that is no URL; the message names where it stands, never what it is.
  static Result<Proxies> create(const StorageSettings& settings);

  /// Whether `of` could ever name one.
  bool any() const { return !http_.empty() || !https_.empty(); }
  /// The proxy's URL; empty: asked for directly.
  std::string of(std::string_view url) const;
  /// For the log: where the proxies come from and their hosts; empty if there are none.
  std::string shown() const;

 private:
  struct Choice {
    std::string url;
    std::string source;
    bool empty() const { return url.empty(); }
  };
  static Result<Choice> choose(const StorageSettings& settings, const char* scheme);

  Choice http_, https_;
  std::vector<std::string> exceptions_;  // of no_proxy, in lower case
};

}  // namespace stoker

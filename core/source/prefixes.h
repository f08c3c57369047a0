#pragma once

#include <map>
#include <string>
#include <vector>

#include "source/url.h"

namespace stoker {

/// The part of a store that is expected to throttle as one: bucket or host, and the first two folders of the name. Not
/// thread-safe.
class Prefixes {
 public:
  /// Further ones share numbers: a manifest may name a host per row.
  static constexpr int kMost = 64;

  /// Numbers from 0 in the order of appearance.
  int number_of(const Location& at);
  /// "s3://bucket/a/b/", "https://host/a/": for messages; without user and query.
  const std::string& name(int number) const { return names_.at(static_cast<std::size_t>(number)); }

 private:
  std::map<std::string, int, std::less<>> numbers_;
  std::vector<std::string> names_;
};

}  // namespace stoker

#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace stoker {

/// Compares each window's plan with what other ranks made of it, through a folder that they share: whoever plans a
/// window first writes its digest, all others compare. Ranks that share no folder are not compared.
class PlanDigests {
 public:
  /// @param index_dir    Empty: nothing is compared.
  /// @param fingerprint  Of the run: other settings, other files.
  PlanDigests(const std::string& index_dir, const std::string& fingerprint);

  /// @return PLAN_MISMATCH if another rank, or an earlier attempt with the same settings, planned this window
  /// differently; INDEX_DIR.
  Status check(std::uint64_t window, const std::string& digest) const;

 private:
  std::string folder_;
};

}  // namespace stoker

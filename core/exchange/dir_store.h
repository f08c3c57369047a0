#pragma once

#include <memory>
#include <string>

#include "exchange/store.h"

namespace stoker {

/// A folder that all ranks see: FOLDER/SPACE/WINDOW/NAME, a file for each value. Works on NFS: files appear whole by
/// link(), are never written in place, and no clock of a node is compared with another's.
///
/// compare_set with something expected is not atomic: of two who replace one value at the same time, both may be told
/// that they did. Claims bear that.
///
/// Opening one removes what nobody has used for a day: spaces of earlier jobs, and `stale` as a whole.
/// @param stale  A folder of an earlier version; may be empty or missing.
/// @return INDEX_DIR.
Result<std::unique_ptr<ValueStore>> open_dir_store(const std::string& folder, const std::string& stale);

}  // namespace stoker

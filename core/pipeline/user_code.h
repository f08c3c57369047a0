#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "data/rgb.h"
#include "metric/metric.h"
#include "model/qwen_vl/smart_resize.h"

namespace stoker {

/// Code of the user's that samples pass through: a stage of its own, whose time is counted apart. What it is called and
/// its version belong to the fingerprint; the engine trusts the version to change when the code does.
///
/// Threads: every method from any. A caller holds no lock, because a call may wait for an interpreter that another
/// thread holds.
class UserCode {
 public:
  virtual ~UserCode() = default;

  /// "row my.module:fn picture my.module:fn version 3".
  virtual std::string identity() const = 0;
  virtual bool has_row() const = 0;
  virtual bool has_picture() const = 0;

  /// A row's JSON before anything is read from it. @return The JSON to use in its place; USER_CODE; STOPPED.
  virtual Result<std::string> row(std::string_view line) = 0;
  /// The size that picture() will give for an upright size; the same one unless the owner declared otherwise.
  /// @return USER_CODE; STOPPED.
  virtual Result<qwen_vl::SizePx> size(qwen_vl::SizePx upright) = 0;
  /// An upright decoded picture. @return One of the size that size() said; USER_CODE; STOPPED.
  virtual Result<RgbImage> picture(RgbImage picture) = 0;

  /// Asks calls that are running to end, and refuses further ones with STOPPED.
  virtual void cancel() = 0;

  /// busy: in the user's code; wait_in: for the interpreter; items: calls.
  const StageClock& clock() const { return clock_; }

 protected:
  StageClock clock_;
};

}  // namespace stoker

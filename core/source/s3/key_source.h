#pragma once

#include <optional>
#include <stop_token>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/result.h"
#include "source/s3/sigv4.h"

namespace stoker {

/// Keys that somebody else found, and for how long they are good.
struct SourcedKeys {
  S3Keys keys;
  std::optional<Nanos> valid_for;  ///< from now on; absent: unknown, they are used until a store refuses them
  std::string provider;            ///< for messages: "botocore (sso)"; never key material
};

/// Finds keys in ways that the engine leaves to somebody else: single sign-on, roles, processes.
/// Threads: any; several stores may share one.
class KeySource {
 public:
  virtual ~KeySource() = default;
  /// May take minutes, but returns within a tenth of a second once `stop` is requested.
  /// @param afresh  A store refused the last keys, so that they must not come from a cache, however valid they look.
  /// @return FETCH_CREDENTIALS and what is missing; a sentence that goes on after "...: ".
  virtual Result<SourcedKeys> get(bool afresh, std::stop_token stop) = 0;
  /// Waits for the end of a thread that may be inside get(), and was asked to stop.
  virtual void join(std::jthread& thread) { thread.join(); }
};

}  // namespace stoker

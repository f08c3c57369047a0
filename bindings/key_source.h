#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "source/s3/key_source.h"

namespace stoker {

/// A Python callable as the engine's source of keys: ask(afresh: bool, is_stopped: Callable[[], bool]) -> (access key
/// id, secret access key, session token, seconds for which they are good or None, provider), or an exception of the
/// package. See stoker/credentials.py.
std::shared_ptr<KeySource> make_key_source(nanobind::callable ask);

}  // namespace stoker

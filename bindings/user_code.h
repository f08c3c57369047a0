#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <memory>
#include <set>
#include <string>

#include "pipeline/user_code.h"

namespace stoker {

/// Python callables as the engine's user code: row(bytes) -> bytes, size(h, w) -> (h, w), picture(array) -> array; None
/// where there is none. The Python side (stoker/user_code.py) turns rows and checks what comes back.
std::shared_ptr<UserCode> make_user_code(std::string identity, nanobind::object row, nanobind::object size,
                                         nanobind::object picture);

}  // namespace stoker

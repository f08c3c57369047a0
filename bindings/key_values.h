#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "exchange/foreign_store.h"

namespace stoker {

/// A Python object with `compare_set(key, expected, desired)` and `erase(key)`, such as stoker.exchange.TorchStore.
std::shared_ptr<KeyValues> make_key_values(nanobind::object store);

}  // namespace stoker

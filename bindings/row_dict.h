#pragma once

#include <nanobind/nanobind.h>

#include "data/sample.h"
#include "manifest/row.h"

namespace stoker {

/// A row as the engine reads it, in plain Python values.
nanobind::dict row_dict(const Sample& sample, const RowNotes& notes);

}  // namespace stoker

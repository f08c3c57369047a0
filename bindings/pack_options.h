#pragma once

#include <nanobind/nanobind.h>

#include "plan/plan.h"

namespace stoker {

/// Settings of packing by the names of `settings.Pack.core_values`; what is left out keeps its default. Other keys are
/// a SETTINGS error, as is what does not go together.
PackSettings pack_settings_of(const nanobind::dict& values);

}  // namespace stoker

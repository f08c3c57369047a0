#pragma once

#include <nanobind/nanobind.h>

#include <string_view>

#include "base/result.h"

namespace stoker {

/// Raises the Python exception that belongs to the status's action: stoker.BadSampleError and so on, with `.code` and
/// `.message`.
[[noreturn]] void throw_status(const Status& status);

/// The only place where a Status becomes an exception.
template <typename T>
T value_or_throw(Result<T> result) {
  if (!result.ok()) throw_status(result.status());
  return std::move(result).value();
}
inline void check_or_throw(const Status& status) {
  if (!status.ok()) throw_status(status);
}

/// UTF-8 text that ends without a zero byte.
inline nanobind::str str_of(std::string_view text) { return nanobind::str(text.data(), text.size()); }

void bind_status(nanobind::module_& m);
void bind_text(nanobind::module_& m);
void bind_media(nanobind::module_& m);
void bind_source(nanobind::module_& m);
void bind_manifest(nanobind::module_& m);
void bind_plan(nanobind::module_& m);
void bind_hand_over(nanobind::module_& m);
void bind_loader(nanobind::module_& m);
void bind_inspect(nanobind::module_& m);
void bind_probe(nanobind::module_& m);
void bind_forecast(nanobind::module_& m);
void bind_model(nanobind::module_& m);
void bind_remote(nanobind::module_& m);

}  // namespace stoker

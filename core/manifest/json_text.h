#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "manifest/json.h"

namespace stoker {

/// A JSON text written anew as Python's `json.dumps(json.loads(text), ensure_ascii=False)` writes it, which is what
/// chat templates insert for tools and arguments: separators ", " and ": ", key order kept, integers of any length,
/// floats by repr(), no sorting, no HTML escapes.
///
/// Other than Python: a key that stands twice is refused, and half a surrogate pair becomes U+FFFD.
/// @return JSON_SYNTAX, JSON_UTF8; JSON_NONFINITE for NaN, Infinity or a float beyond double; JSON_DUPLICATE_KEY.
/// Threads: any.
/// Source: CPython 3.11, Lib/json/encoder.py and float.__repr__; a pytest compares with the running Python.
Result<std::string> json_text(std::string_view text);

/// The same for a value that is already parsed; appends to `out`.
Status append_json_text(const JsonView& value, std::string& out, std::uint32_t* n_replaced = nullptr);

}  // namespace stoker

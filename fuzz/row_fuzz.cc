// Any bytes are a row that holds together, or a typed error.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "manifest/json_text.h"
#include "manifest/row.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view line(reinterpret_cast<const char*>(data), size);
  const auto sample = stoker::parse_row(line);
  if (sample.ok()) {
    for (const stoker::Turn& turn : sample->turns) {
      for (const stoker::Part& part : turn.parts) {
        if (part.kind != stoker::Part::Kind::kText && part.media >= sample->media.size()) __builtin_trap();
      }
    }
  } else if (sample.status().code() != stoker::Code::kBadSample) {
    __builtin_trap();
  }
  // What is written anew reads back as itself.
  if (const auto text = stoker::json_text(line); text.ok()) {
    const auto again = stoker::json_text(*text);
    if (!again.ok() || *again != *text) __builtin_trap();
  }
  return 0;
}

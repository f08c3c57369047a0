// One JSONL line. Whatever it holds, it is a sample that keeps its promises, or a bad one; never a crash, never our own
// bug.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "manifest/json_text.h"
#include "manifest/row.h"
#include "text/utf8.h"

namespace {

void require(bool claim) {
  if (!claim) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view line(reinterpret_cast<const char*>(data), size);
  // What is written anew reads back as itself.
  if (const auto text = stoker::json_text(line); text.ok()) {
    const auto again = stoker::json_text(*text);
    require(again.ok() && *again == *text);
  }
  const auto sample = stoker::parse_row(line);
  if (!sample.ok()) {
    require(sample.status().code() == stoker::Code::kBadSample);
    require(!sample.status().message().empty());
    return 0;
  }
  std::size_t n_media = 0;
  for (const stoker::Turn& turn : sample->turns) {
    for (const stoker::Part& part : turn.parts) {
      if (part.kind == stoker::Part::Kind::kText) {
        require(stoker::text::is_valid_utf8(part.text));
      } else {
        require(part.media == n_media++);  // in reading order, each once
      }
    }
  }
  require(n_media == sample->media.size());
  return 0;
}

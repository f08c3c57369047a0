// What a server may send: an error body, and an answer's head and body in pieces. The first byte decides which.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <utility>

#include "source/http/answer.h"
#include "source/s3/error_xml.h"

namespace {

void require(bool claim) {
  if (!claim) std::abort();
}

void read_error(std::string_view body) {
  const stoker::S3Error error = stoker::parse_s3_error(body);
  require(error.code.size() <= 512 && error.message.size() <= 4 * 512);
}

/// Header lines up to an empty one, then the body in pieces of 1, 2, 4, ... bytes.
void read_answer(std::string_view text, bool with_range, bool is_continuation) {
  stoker::Answer answer;
  const std::uint64_t max_object_bytes = 1 << 16;
  std::optional<stoker::Partial> partial;
  if (is_continuation) partial = {.bytes = stoker::Buffer(40), .n_filled = 7, .total_bytes = 100, .etag = "\"t\""};
  answer.begin(with_range ? 3 : 0, with_range ? std::optional<std::uint64_t>(40) : std::nullopt,
               {.max_object_bytes = max_object_bytes}, std::move(partial));
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end == std::string_view::npos ? text.size() : end + 1);
    text.remove_prefix(line.size());
    answer.on_header(line);
    if (line == "\n" || line == "\r\n") break;
  }
  for (std::size_t n = 1; !text.empty(); n *= 2) {
    const std::string_view piece = text.substr(0, n);
    text.remove_prefix(piece.size());
    if (!answer.on_body(piece)) break;
  }
  if (!answer.is_success() && answer.head().status != 416) return;
  const auto object = answer.finish();
  if (!object.ok()) {
    if (const auto rest = answer.take_partial()) require(rest->n_filled < rest->bytes.size() && !rest->etag.empty());
  }
  if (object.ok()) return;
  require(!object.status().message().empty());
  require(object.status().code() != stoker::Code::kInternal);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 4 == 0) {
    read_error(text);
  } else {
    read_answer(text, data[0] % 4 != 2, data[0] % 4 == 3);
  }
  return 0;
}

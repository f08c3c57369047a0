// Everything in core/source that reads foreign bytes: S3 error bodies, profile files, HTTP heads and bodies, media
// references.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "source/data/data_url.h"
#include "source/s3/credentials.h"
#include "source/url.h"

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

void reference(std::string_view input) {
  const auto resolved = stoker::resolve_media(input, "s3://bucket/prefix");
  if (!resolved.ok()) return;
  const auto at = stoker::parse_location(resolved.value());
  if (at.ok()) require(at.value().shown().size() < 500);
}

void data_url(std::string_view input) {
  const std::size_t n_shown =
      stoker::shown_media(input).size();  // what is no data: URL is shown in whole up to a limit
  require(n_shown < 1200);
  constexpr std::uint64_t kMost = 1 << 20;
  const auto bytes = stoker::decode_data_url(input, kMost);
  if (bytes.ok()) {
    require(bytes->size() <= stoker::data_url_bytes(input));
  } else {
    require(bytes.status().code() == stoker::Code::kBadSample);
    require(bytes.status().message().size() < n_shown + 300);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 4) {
    case 0:
      stoker::parse_ini(input);
      break;
    case 1:
      reference(input);
      break;
    case 2:
      data_url(input);
      break;
    default:
      require(stoker::percent_decode(stoker::percent_encode(input, (size & 1) != 0)) == input);
  }
  return 0;
}

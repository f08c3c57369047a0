// What a worker tells of a pack that it made: what is taken comes back as it went in.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "engine/made_wire.h"

namespace {

void require(bool claim) {
  if (!claim) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const auto got = stoker::decode_made(input);
  if (!got.ok()) {
    require(got.status().reason() == stoker::Reason::kPeerMismatch);
    return 0;
  }
  const std::string again = stoker::encode_made(*got);
  const auto twice = stoker::decode_made(again);
  require(twice.ok() && stoker::encode_made(*twice) == again);
  require(got->pack.block_bytes == got->pack.delivery.batch.layout().n_bytes);
  for (const stoker::LateSample& late : got->found_late) require(late.status.code() == stoker::Code::kBadSample);
  return 0;
}

// A pack to make, as a coordinator sends it: what is taken is byte for byte what would be sent.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/hash.h"
#include "base/wire.h"
#include "pipeline/task_wire.h"

namespace {

void require(bool claim) {
  if (!claim) std::abort();
}

void check(std::string_view bytes) {
  const auto got = stoker::decode_task(bytes);
  if (!got.ok()) return require(got.status().reason() == stoker::Reason::kPeerMismatch);
  require(stoker::encode_task(*got) == bytes);
  require(got->micro_batch < got->micro_batches_in_step);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  check(input);
  // With the numbers of a sound one in front of samples whose checksum is right, so that these are looked at.
  const std::string head = stoker::encode_task({.micro_batches_in_step = 1, .members = {}});
  const std::string none = stoker::encode_lengths({});
  std::string samples = "STKLEN1\n" + std::string(input.substr(std::min<std::size_t>(input.size(), 8)));
  stoker::WireWriter(samples).fixed64(stoker::hash64(samples));
  check(head.substr(0, head.size() - none.size()) + samples);
  return 0;
}

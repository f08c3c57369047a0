// Lengths of samples, as another rank or a file gives them: what is taken is byte for byte what would be written.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/hash.h"
#include "base/wire.h"
#include "data/lengths.h"

namespace {

void require(bool claim) {
  if (!claim) std::abort();
}

void check(std::string_view bytes) {
  const auto got = stoker::decode_lengths(bytes);
  if (got.ok()) require(stoker::encode_lengths(*got) == bytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  check(input);
  // As the sender's checksum would have it, so that what lies behind the checksum is looked at.
  std::string sound("STKLEN1\n");
  sound += input.substr(std::min(input.size(), sound.size()));
  stoker::WireWriter(sound).fixed64(stoker::hash64(sound));
  check(sound);
  return 0;
}

// What one peer sends another. What is taken is a message: it comes back as it went in, and a pack's arrays lie in its
// block.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <variant>

#include "peers/messages.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stoker::peers;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto message = decode(bytes);
  if (!message.ok()) {
    if (message.status().reason() != stoker::Reason::kPeerMismatch) std::abort();
    return 0;
  }
  const std::string again = encode(*message);
  const auto twice = decode(again);
  if (!twice.ok() || encode(*twice) != again) std::abort();
  if (const auto* pack = std::get_if<Pack>(&*message)) {
    if (pack->delivery.batch.layout().n_bytes > pack->block_bytes) std::abort();
  }
  return 0;
}

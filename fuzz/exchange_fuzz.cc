// What a peer sends to the exchange's service: cut into messages in whatever pieces it came, and a request that is read
// is byte for byte what would have been written.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "exchange/wire.h"

namespace {

void require(bool claim) {
  if (!claim) std::abort();
}

std::vector<std::string> messages_of(std::string_view bytes, std::size_t piece, bool& is_refused) {
  stoker::wire::Unframer unframer;
  std::vector<std::string> out;
  for (std::size_t at = 0; at < bytes.size(); at += piece) {
    is_refused = !unframer.add(bytes.substr(at, piece), 4096).ok();
    if (is_refused) break;
    while (auto message = unframer.next()) out.push_back(std::move(*message));
  }
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  if (const auto request = stoker::wire::decode_request(input); request.ok()) {
    require(request->key.is_valid() && stoker::wire::encode(*request) == input);
  }
  bool is_refused = false;
  bool is_refused_in_pieces = false;
  const auto one_by_one = messages_of(input, 1, is_refused);
  require(messages_of(input, 7, is_refused_in_pieces) == one_by_one || is_refused_in_pieces);
  std::string again;
  for (const std::string& message : one_by_one) again += stoker::wire::framed(message);
  require(input.starts_with(again));
  return 0;
}

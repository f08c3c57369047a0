// Files of the index and the records in them: what is taken is byte for byte what would be written.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/hash.h"
#include "base/wire.h"
#include "index/lengths_index.h"
#include "index/record_log.h"

namespace {

void require(bool claim) {
  if (!claim) std::abort();
}

void check_record(std::string_view bytes) {
  if (const auto text = stoker::decode_text(bytes)) require(stoker::encode_text(*text) == bytes);
  if (const auto media = stoker::decode_media(bytes)) require(stoker::encode_media(*media) == bytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const stoker::Hash128 rules{1, 2};
  check_record(input);

  // As blocks of a log with a right head and right checksums, so that what lies behind these is looked at.
  std::string log = stoker::RecordLog::head(rules);
  const std::size_t half = input.size() / 2;
  for (const std::string_view payload : {input.substr(0, half), input.substr(half)}) {
    if (payload.size() <= stoker::RecordLog::kMostBlockBytes) log += stoker::RecordLog::block(payload);
  }
  std::string payload;
  stoker::RecordLog::read(log, rules, [&](const stoker::Hash128& key, std::string_view value) {
    stoker::RecordLog::add(payload, key, value);
    check_record(value);
  });
  require(std::string_view(input).starts_with(payload));  // whole blocks from the front, nothing passed over
  // Any bytes as a log: only a prefix of whole blocks is visited.
  stoker::RecordLog::read(std::string(log.substr(0, stoker::RecordLog::kHeadBytes)) + std::string(input), rules,
                          [](const stoker::Hash128&, std::string_view) {});
  return 0;
}

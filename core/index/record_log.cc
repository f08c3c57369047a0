#include "index/record_log.h"

#include "base/wire.h"

namespace stoker {
namespace {

constexpr std::string_view kMagic = "STKLOG1\n";
constexpr std::size_t kBlockHeadBytes = 8 + 8;

/// Visits every record of a payload. @return false if it is none.
bool read_payload(std::string_view payload, const RecordLog::Visit& visit) {
  WireReader from(payload);
  while (from.ok() && from.n_left() > 0) {
    Hash128 key;
    key.high = from.fixed64();
    key.low = from.fixed64();
    const std::string_view value = from.text(RecordLog::kMostValueBytes);
    if (from.ok() && visit) visit(key, value);
  }
  return from.ok();
}

}  // namespace

std::string RecordLog::head(const Hash128& rules) {
  std::string out(kMagic);
  WireWriter to(out);
  to.fixed64(rules.high);
  to.fixed64(rules.low);
  to.fixed64(hash64(out));
  return out;
}

void RecordLog::add(std::string& payload, const Hash128& key, std::string_view value) {
  WireWriter to(payload);
  to.fixed64(key.high);
  to.fixed64(key.low);
  to.text(value);
}

std::string RecordLog::block(std::string_view payload) {
  std::string out;
  out.reserve(kBlockHeadBytes + payload.size());
  WireWriter to(out);
  to.fixed64(payload.size());
  to.fixed64(hash64(payload));
  out += payload;
  return out;
}

RecordLog::End RecordLog::read(std::string_view bytes, const Hash128& rules, const Visit& visit) {
  if (bytes.substr(0, kHeadBytes) != head(rules)) return End::kNotOurs;
  bytes.remove_prefix(kHeadBytes);
  while (!bytes.empty()) {
    WireReader from(bytes);
    const std::uint64_t n = from.fixed64();
    const std::uint64_t checksum = from.fixed64();
    if (!from.ok() || n == 0 || n > kMostBlockBytes || n > from.n_left()) return End::kTorn;
    const std::string_view payload = bytes.substr(kBlockHeadBytes, n);
    if (hash64(payload) != checksum || !read_payload(payload, nullptr)) return End::kTorn;
    read_payload(payload, visit);
    bytes.remove_prefix(kBlockHeadBytes + n);
  }
  return End::kWhole;
}

}  // namespace stoker

#include "exchange/wire.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/hash.h"

namespace stoker::wire {
namespace {

template <typename T>
void add_number(std::string& out, T value) {
  for (std::size_t i = 0; i < sizeof value; ++i) out.push_back(static_cast<char>(value >> (8 * i)));
}

/// Reads from the front; once something was missing, everything after it is too.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  template <typename T>
  T number() {
    T value = 0;
    const std::string_view part = take(sizeof value);
    for (std::size_t i = 0; i < part.size(); ++i)
      value |= static_cast<T>(static_cast<T>(static_cast<unsigned char>(part[i])) << (8 * i));
    return value;
  }
  std::string text(std::size_t most_bytes) {
    const auto n = number<std::uint32_t>();
    if (n > most_bytes) is_whole_ = false;
    return std::string(take(n));
  }
  bool is_done() const { return is_whole_ && bytes_.empty(); }

 private:
  std::string_view take(std::size_t n) {
    if (n > bytes_.size()) is_whole_ = false;
    if (!is_whole_) return {};
    const std::string_view part = bytes_.substr(0, n);
    bytes_.remove_prefix(n);
    return part;
  }
  std::string_view bytes_;
  bool is_whole_ = true;
};

void add_text(std::string& out, std::string_view text) {
  add_number(out, static_cast<std::uint32_t>(text.size()));
  out += text;
}

std::string raw_sha256(std::string_view bytes) {
  const std::string hex = sha256_hex(bytes);
  std::string out;
  const auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  for (std::size_t i = 0; i < hex.size(); i += 2)
    out.push_back(static_cast<char>(digit(hex[i]) * 16 + digit(hex[i + 1])));
  return out;
}

}  // namespace

std::string encode(const Request& request) {
  std::string out;
  add_number(out, static_cast<std::uint8_t>(request.kind));
  add_number(out, request.key.window);
  add_text(out, request.key.space);
  add_text(out, request.key.name);
  add_number(out, request.wait_ms);
  add_text(out, request.expected);
  add_text(out, request.desired);
  return out;
}

Result<Request> decode_request(std::string_view message) {
  Reader reader(message);
  Request r;
  const auto kind = reader.number<std::uint8_t>();
  r.kind = static_cast<Request::Kind>(kind);
  r.key.window = reader.number<std::uint64_t>();
  r.key.space = reader.text(StoreKey::kMostNameBytes);
  r.key.name = reader.text(StoreKey::kMostNameBytes);
  r.wait_ms = reader.number<std::uint32_t>();
  r.expected = reader.text(ValueStore::kMostValueBytes);
  r.desired = reader.text(ValueStore::kMostValueBytes);
  const bool is_kind = kind >= 1 && kind <= 3;
  const bool is_set = r.kind == Request::Kind::kCompareSet;
  if (!is_kind || !reader.is_done() || !r.key.is_valid() || is_set == r.desired.empty()) {
    return Status(Reason::kSettings, "not a request of this version");
  }
  return r;
}

std::string framed(std::string_view message) {
  std::string out;
  out.reserve(message.size() + 4);
  add_text(out, message);
  return out;
}

Status Unframer::add(std::string_view bytes, std::size_t most_bytes) {
  bytes_ += bytes;
  if (bytes_.size() >= 4 && Reader(bytes_).number<std::uint32_t>() > most_bytes) {
    return Status(Reason::kSettings, "a message that is too long");
  }
  return {};
}

std::optional<std::string> Unframer::next() {
  if (bytes_.size() < 4) return std::nullopt;
  const std::size_t n = Reader(bytes_).number<std::uint32_t>();
  if (bytes_.size() - 4 < n) return std::nullopt;
  std::string message = bytes_.substr(4, n);
  bytes_.erase(0, 4 + n);
  return message;
}

std::string proof_of(std::string_view secret, std::string_view role, std::string_view client_nonce,
                     std::string_view server_nonce) {
  constexpr std::size_t kBlock = 64;  // RFC 2104, SHA-256
  std::string key = raw_sha256(secret);
  key.resize(kBlock, '\0');
  std::string inner = key, outer = key;
  for (char& c : inner) c = static_cast<char>(c ^ 0x36);
  for (char& c : outer) c = static_cast<char>(c ^ 0x5c);
  inner += role;
  inner.push_back('\0');
  inner += client_nonce;
  inner += server_nonce;
  return raw_sha256(outer + raw_sha256(inner));
}

bool is_same_proof(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned char difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

}  // namespace stoker::wire

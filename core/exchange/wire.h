#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "exchange/store.h"

namespace stoker::wire {

// Messages have a length of 4 bytes before them; all numbers are little endian.
//
//   client: greeting (kMagic, nonce)     server: nonce, proof that it knows the secret
//   client: proof                        server: reply, empty
//   client: request                      server: reply                                   again and again, one at a time

inline constexpr std::string_view kMagic = "stoker exchange 1";
inline constexpr std::size_t kNonceBytes = 16;
inline constexpr std::size_t kProofBytes = 32;
/// Of a peer that has not shown that it knows the secret.
inline constexpr std::size_t kMostGreetingBytes = 64;
inline constexpr std::size_t kMostMessageBytes = 2 * ValueStore::kMostValueBytes + 1024;

struct Request {
  enum class Kind : std::uint8_t { kGet = 1, kCompareSet = 2, kDropBefore = 3 };
  Kind kind = Kind::kGet;
  StoreKey key;               ///< kDropBefore: its name is "all"
  std::uint32_t wait_ms = 0;  ///< kGet
  std::string expected = {};  ///< kCompareSet, as the next
  std::string desired = {};
};

std::string encode(const Request& request);
/// Of a message without its length. @return SETTINGS for whatever encode() does not write.
Result<Request> decode_request(std::string_view message);

/// A message with its length before it.
std::string framed(std::string_view message);

/// What makes messages of the bytes of a connection. Takes memory for bytes that came, never for what they announce.
class Unframer {
 public:
  /// @return SETTINGS once a message announces more than `most_bytes`.
  Status add(std::string_view bytes, std::size_t most_bytes);
  /// The next whole message.
  std::optional<std::string> next();
  std::size_t n_bytes() const { return bytes_.size(); }

 private:
  std::string bytes_;
};

/// HMAC-SHA-256 over (role, client's nonce, server's nonce): 32 bytes that only who knows the secret can make.
std::string proof_of(std::string_view secret, std::string_view role, std::string_view client_nonce,
                     std::string_view server_nonce);
/// Compares in a time that does not depend on where they differ.
bool is_same_proof(std::string_view a, std::string_view b);

}  // namespace stoker::wire

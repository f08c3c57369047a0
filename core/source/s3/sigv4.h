#pragma once

#include <ctime>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/mutex.h"

namespace stoker {

struct S3Keys {
  std::string access_key_id;
  std::string secret_access_key;
  std::string session_token;  ///< empty: none
};

inline constexpr std::string_view kEmptyPayloadSha256 =
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// What a signature covers. `path` is the literal one ("/bucket/a b+c"), encoded exactly once here and on the wire.
struct SignedRequest {
  std::string_view method = "GET";
  std::string_view host;
  std::string_view path;
  std::vector<std::pair<std::string, std::string>> query;              ///< literal
  std::vector<std::pair<std::string_view, std::string_view>> headers;  ///< further ones to sign; names in lower case
  std::string_view payload_sha256 = kEmptyPayloadSha256;
};

struct Signature {
  std::string encoded_path;
  std::string encoded_query;  ///< without "?"; empty: none
  /// All headers to send beside Host, each as "name: value", names in lower case: the given ones, x-amz-*,
  /// authorization.
  std::vector<std::string> headers;
};

/// AWS Signature Version 4 for S3. The signing key of a day is made once and kept.
/// Threads: any.
/// Source: "Signature Calculations for the Authorization Header" of the Amazon S3 API reference; compared with botocore
/// in the tests.
class SigV4 {
 public:
  Signature sign(const SignedRequest& request, const S3Keys& keys, std::string_view region, std::time_t now)
      STOKER_EXCLUDES(mu_);

 private:
  std::string signing_key(const S3Keys& keys, std::string_view region, std::string_view day) STOKER_EXCLUDES(mu_);

  struct SigningKey {
    std::string day, region, secret;  // what `key` was made of
    std::string key;
  };
  Mutex mu_;
  SigningKey cached_ STOKER_GUARDED_BY(mu_);
};

}  // namespace stoker

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace stoker {

class KeySource;
class MemoryObjects;

/// How a bucket stands in a URL.
enum class Addressing : std::uint8_t {
  kAuto,         ///< path when an endpoint is set, or the bucket's name has a dot under TLS; else virtual host
  kPath,         ///< https://endpoint/bucket/key
  kVirtualHost,  ///< https://bucket.endpoint/key
};

/// Looks a variable up in the process's environment, or in a test's.
using Environment = std::function<std::optional<std::string>(const char* name)>;
Environment process_environment();

/// Where storage is and who we are to it. An empty field is looked up: in the environment (AWS_*), then in the profile
/// files.
struct StorageSettings {
  std::string endpoint;  ///< "http://10.0.0.5:9000"; then AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, the profile's
                         ///< endpoint_url, AWS itself
  std::string region;    ///< then AWS_REGION, AWS_DEFAULT_REGION, the profile's region, us-east-1
  Addressing addressing = Addressing::kAuto;

  std::string access_key_id;  ///< with secret_access_key; then AWS_ACCESS_KEY_ID..., then the profile
  std::string secret_access_key;
  std::string session_token;
  std::string profile;     ///< then AWS_PROFILE, "default"
  bool anonymous = false;  ///< public buckets: nothing is signed
  bool requester_pays = false;

  std::string ca_file;     ///< PEM bundle; then AWS_CA_BUNDLE, the system's
  bool verify_tls = true;  ///< false is logged as a warning at every start
  std::string proxy;       ///< "http://user:password@host:port"; then http_proxy..., in both cases; "none": no proxy
  bool http2 = false;      ///< where a store offers it over TLS; several requests then share a connection

  /// IP addresses of a host, for a test's; absent: the system's.
  std::function<std::vector<std::string>(const std::string& host)> resolver;
  Environment environment = process_environment();
  std::shared_ptr<KeySource> key_source;        ///< for what the engine does not look up itself: roles, single sign-on,
                                                ///< processes; absent: FETCH_CREDENTIALS
  std::shared_ptr<const MemoryObjects> memory;  ///< what mem:// reads; absent: MEDIA_NOT_FOUND
};

}  // namespace stoker

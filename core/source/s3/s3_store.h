#pragma once

#include <atomic>
#include <ctime>
#include <map>
#include <string>
#include <string_view>

#include "base/mutex.h"
#include "source/http/dialect.h"
#include "source/s3/credentials.h"
#include "source/s3/error_xml.h"
#include "source/s3/sigv4.h"
#include "source/storage_settings.h"

namespace stoker {

/// Where a bucket is reached. Pure.
struct S3Endpoint {
  std::string scheme;      ///< "http" or "https"
  std::string host;        ///< with ":port" unless it is the scheme's own
  std::string base_path;   ///< "" or "/prefix"
  bool is_custom = false;  ///< not AWS's own
  std::string source;      ///< "the settings", "AWS_ENDPOINT_URL_S3", ...; for the log

  /// @return SETTINGS if `url` is not http(s)://host[:port][/path].
  static Result<S3Endpoint> parse(std::string_view url, std::string source);
  static S3Endpoint of_aws(std::string_view region);
};

/// Host and literal path of one object.
struct S3Address {
  std::string host;
  std::string path;
};
S3Address address_of(const S3Endpoint& endpoint, Addressing addressing, std::string_view bucket, std::string_view key);

/// Signs requests for S3 and everything that speaks like it, and knows what its refusals mean.
/// Threads: any.
class S3Store final : public Dialect {
 public:
  /// Settles endpoint, region and credentials by the precedence of StorageSettings; logs the choice once, without
  /// secrets.
  static Result<std::unique_ptr<S3Store>> create(const StorageSettings& settings, const Clock& clock = Clock::real());

  Result<WireRequest> prepare(const Job& job) override;
  Outcome explain(const Job& job, const WireRequest& sent, const AnswerHead& head,
                  std::string_view error_body) override;

  /// No thread of the credentials is left.
  void stop() { credentials_.stop(); }

  const std::string& region() const { return region_; }
  const S3Endpoint& endpoint() const { return endpoint_; }

 private:
  S3Store(const StorageSettings& settings, S3Endpoint endpoint, std::string region, bool asks_checksums,
          const Clock& clock);

  std::string region_of(const std::string& bucket) const STOKER_EXCLUDES(mu_);
  Outcome explain_redirect(const Job& job, const WireRequest& sent, const AnswerHead& head, const std::string& region,
                           const std::string& endpoint) STOKER_EXCLUDES(mu_);
  Outcome explain_credentials(const WireRequest& sent, const AnswerHead& head, const std::string& code);
  /// What a store says, which may echo what it was sent: keys never leave through a message.
  S3Error read_error(std::string_view error_body) const;

  const Addressing addressing_;
  const bool is_anonymous_;
  const bool requester_pays_;
  const bool asks_checksums_;
  const S3Endpoint endpoint_;
  const std::string region_;

  CredentialStore credentials_;
  SigV4 signer_;
  std::atomic<std::int64_t> clock_skew_s_{0};  // the store's time minus ours; written by whoever is refused for it

  mutable Mutex mu_;
  std::map<std::string, std::string> region_of_bucket_ STOKER_GUARDED_BY(mu_);  // learned from redirects
};

}  // namespace stoker

#include "source/s3/s3_store.h"

#include <curl/curl.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include <fmt/format.h>

#include "base/log.h"
#include "source/s3/error_xml.h"

namespace stoker {
namespace {

constexpr std::int64_t kMaxSkewS = 24 * 3600;

template <std::size_t N>
bool is_one_of(std::string_view code, const std::array<std::string_view, N>& codes) {
  return std::find(codes.begin(), codes.end(), code) != codes.end();
}

// The store does not believe who we are. All of them may be cured by fresh keys.
constexpr std::array<std::string_view, 11> kCredentialCodes = {
    "InvalidAccessKeyId",   "SignatureDoesNotMatch", "ExpiredToken",        "InvalidToken",
    "TokenRefreshRequired", "RequestExpired",        "InvalidSecurity",     "NotSignedUp",
    "AccountProblem",       "MissingSecurityHeader", "InvalidClientTokenId"};
constexpr std::array<std::string_view, 5> kThrottleCodes = {"SlowDown", "Throttling", "ThrottlingException",
                                                            "RequestLimitExceeded", "TooManyRequests"};

// Codes, regions and hosts: nothing else of a store's words goes into a message or a signature unread.
bool is_name(std::string_view text) {
  constexpr std::size_t kLongest = 128;
  return text.size() <= kLongest && text.find_first_not_of(
                                        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                        "0123456789-_.:") == std::string_view::npos;
}

std::string shown(const std::string& code, const std::string& message) {
  return message.empty() ? code : code + " (" + message.substr(0, 200) + ")";
}

bool looks_like_ip(std::string_view host) {
  return host.find_first_not_of("0123456789.") == std::string_view::npos || host.front() == '[';
}

std::string first_of(std::string a, std::string b, std::string c) { return !a.empty() ? a : !b.empty() ? b : c; }

std::string get(const std::map<std::string, std::string>& values, const char* name) {
  const auto it = values.find(name);
  return it == values.end() ? "" : it->second;
}

Result<S3Endpoint> choose_endpoint(const StorageSettings& settings, const std::map<std::string, std::string>& profile,
                                   std::string_view region) {
  if (!settings.endpoint.empty()) return S3Endpoint::parse(settings.endpoint, "storage.endpoint");
  for (const char* name : {"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"}) {
    if (const auto url = settings.environment(name)) return S3Endpoint::parse(*url, name);
  }
  if (const std::string url = get(profile, "endpoint_url"); !url.empty())
    return S3Endpoint::parse(url, "the AWS profile");
  return S3Endpoint::of_aws(region);
}

Addressing choose_addressing(const StorageSettings& settings, const std::map<std::string, std::string>& profile) {
  if (settings.addressing != Addressing::kAuto) return settings.addressing;
  const std::string style = get(profile, "s3.addressing_style");
  return style == "path" ? Addressing::kPath : style == "virtual" ? Addressing::kVirtualHost : Addressing::kAuto;
}

}  // namespace

Result<S3Endpoint> S3Endpoint::parse(std::string_view url, std::string source) {
  const auto wrong = [&] {
    return Status(Reason::kSettings,
                  fmt::format("the endpoint of {} must look like http://host:port or https://host", source));
  };
  S3Endpoint endpoint;
  endpoint.is_custom = true;
  endpoint.source = source;
  const std::size_t colon = url.find("://");
  if (colon == std::string_view::npos) return wrong();
  endpoint.scheme = std::string(url.substr(0, colon));
  std::string_view rest = url.substr(colon + 3);
  const std::size_t slash = std::min(rest.find('/'), rest.size());
  endpoint.host = std::string(rest.substr(0, slash));
  endpoint.base_path = std::string(rest.substr(slash));
  while (!endpoint.base_path.empty() && endpoint.base_path.back() == '/') endpoint.base_path.pop_back();
  const bool is_clean =
      !endpoint.host.empty() && endpoint.host.front() != ':' && url.find_first_of(" ?#@\\") == std::string_view::npos;
  if (!is_clean || (endpoint.scheme != "http" && endpoint.scheme != "https")) return wrong();
  // curl leaves the default port out of the Host header, which is signed.
  const std::string own_port = endpoint.scheme == "http" ? ":80" : ":443";
  if (endpoint.host.ends_with(own_port)) endpoint.host.resize(endpoint.host.size() - own_port.size());
  return endpoint;
}

S3Endpoint S3Endpoint::of_aws(std::string_view region) {
  const char* domain = region.substr(0, 3) == "cn-" ? "amazonaws.com.cn" : "amazonaws.com";
  return {"https", fmt::format("s3.{}.{}", region, domain), "", false, "AWS"};
}

S3Address address_of(const S3Endpoint& endpoint, Addressing addressing, std::string_view bucket, std::string_view key) {
  if (addressing == Addressing::kAuto) {
    const std::string_view name = std::string_view(endpoint.host).substr(0, endpoint.host.rfind(':'));
    const bool dotted_under_tls = endpoint.scheme == "https" && bucket.find('.') != std::string_view::npos;
    const bool odd_name =
        std::any_of(bucket.begin(), bucket.end(), [](char c) { return (c >= 'A' && c <= 'Z') || c == '_'; });
    const bool by_path = endpoint.is_custom || looks_like_ip(name) || dotted_under_tls || odd_name;
    addressing = by_path ? Addressing::kPath : Addressing::kVirtualHost;
  }
  if (addressing == Addressing::kPath) {
    std::string path;
    path.reserve(endpoint.base_path.size() + bucket.size() + key.size() + 2);
    path.append(endpoint.base_path).append("/").append(bucket).append("/").append(key);
    return {endpoint.host, std::move(path)};
  }
  return {fmt::format("{}.{}", bucket, endpoint.host), fmt::format("{}/{}", endpoint.base_path, key)};
}

S3Store::S3Store(const StorageSettings& settings, S3Endpoint endpoint, std::string region, bool asks_checksums,
                 const Clock& clock)
    : addressing_(settings.addressing),
      is_anonymous_(settings.anonymous),
      requester_pays_(settings.requester_pays),
      asks_checksums_(asks_checksums),
      endpoint_(std::move(endpoint)),
      region_(std::move(region)),
      credentials_(settings, clock) {}

Result<std::unique_ptr<S3Store>> S3Store::create(const StorageSettings& settings, const Clock& clock) {
  if (settings.access_key_id.empty() != settings.secret_access_key.empty()) {
    return Status(Reason::kSettings, "storage.access_key_id and storage.secret_access_key must be given together");
  }
  std::string name;
  const auto profile = read_profile(settings, name);
  const std::string from_environment =
      settings.environment("AWS_REGION").value_or(settings.environment("AWS_DEFAULT_REGION").value_or(""));
  std::string region = first_of(settings.region, from_environment, get(profile, "region"));
  if (region.empty()) region = "us-east-1";
  if (region.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") !=
      std::string::npos) {
    return Status(Reason::kSettings, "storage.region may hold letters, digits, '-' and '_' only");
  }
  STOKER_TRY(S3Endpoint endpoint, choose_endpoint(settings, profile, region));
  const std::string validation =
      settings.environment("AWS_RESPONSE_CHECKSUM_VALIDATION").value_or(get(profile, "response_checksum_validation"));
  StorageSettings chosen = settings;
  chosen.addressing = choose_addressing(settings, profile);
  if (endpoint.is_custom) {
    const char* style = chosen.addressing == Addressing::kVirtualHost ? "virtual-host style" : "path style";
    log(LogLevel::kInfo, fmt::format("s3: endpoint {}://{} (from {}), region {}, {}", endpoint.scheme, endpoint.host,
                                     endpoint.source, region, style));
  }
  return std::unique_ptr<S3Store>(
      new S3Store(chosen, std::move(endpoint), std::move(region), validation != "when_required", clock));
}

std::string S3Store::region_of(const std::string& bucket) const {
  MutexLock lock(mu_);
  const auto it = region_of_bucket_.find(bucket);
  return it == region_of_bucket_.end() ? region_ : it->second;
}

Result<WireRequest> S3Store::prepare(const Job& job) {
  WireRequest wire;
  wire.region = region_of(job.at.bucket);
  const bool is_moved = !endpoint_.is_custom && wire.region != region_;
  const S3Address address =
      address_of(is_moved ? S3Endpoint::of_aws(wire.region) : endpoint_, addressing_, job.at.bucket, job.at.key);

  // Stores have none of a part.
  const bool asks_checksum = asks_checksums_ && job.request.offset == 0 && !job.request.length && !job.partial;

  if (is_anonymous_) {
    wire.url = endpoint_.scheme + "://" + address.host + percent_encode(address.path, true);
    if (asks_checksum) wire.headers.emplace_back("x-amz-checksum-mode: ENABLED");
  } else {
    STOKER_TRY(const Credentials credentials, credentials_.current());
    wire.credentials_generation = credentials.generation;
    SignedRequest request;
    request.host = address.host;
    request.path = address.path;
    if (asks_checksum) request.headers.emplace_back("x-amz-checksum-mode", "ENABLED");
    if (requester_pays_) request.headers.emplace_back("x-amz-request-payer", "requester");
    Signature signature = signer_.sign(request, credentials.keys, wire.region,
                                       std::time(nullptr) + clock_skew_s_.load(std::memory_order_relaxed));
    wire.url = endpoint_.scheme + "://" + address.host + signature.encoded_path;
    wire.headers = std::move(signature.headers);
  }
  add_conditions(job, wire.headers);
  return wire;
}

Outcome S3Store::explain_redirect(const Job& job, const WireRequest& sent, const AnswerHead& head,
                                  const std::string& region, const std::string& endpoint) {
  std::string known = region_of(job.at.bucket);
  if (!region.empty() && known == sent.region && region != sent.region) {
    MutexLock lock(mu_);
    // Only the first word of a store is taken: one that sends us round in circles gets an error, not a loop.
    if (region_of_bucket_.emplace(job.at.bucket, region).second) known = region;
  }
  std::string where = !region.empty()     ? "in region " + region
                      : !endpoint.empty() ? "behind endpoint " + endpoint
                                          : "elsewhere";
  Outcome outcome =
      Outcome::failed(Reason::kFetchRedirect, fmt::format("bucket \"{}\" is {}, the client is set to {} (answer {})",
                                                          job.at.bucket, where, sent.region, head.status));
  outcome.try_again_now = known != sent.region;
  return outcome;
}

Outcome S3Store::explain_credentials(const WireRequest& sent, const AnswerHead& head, const std::string& code) {
  const std::string provider = is_anonymous_ ? "nobody (anonymous)" : credentials_.provider();
  const Refreshed refreshed = is_anonymous_ ? Refreshed::kSame : credentials_.refresh(sent.credentials_generation);
  Outcome outcome =
      Outcome::failed(refreshed == Refreshed::kPending ? Reason::kFetchKeysPending : Reason::kFetchCredentials,
                      fmt::format("the store refuses the credentials of {}: {} ({})", provider,
                                  code.empty() ? "no reason given" : code, head.status));
  outcome.try_again_now = refreshed == Refreshed::kNew;
  return outcome;
}

S3Error S3Store::read_error(std::string_view error_body) const {
  S3Error error = parse_s3_error(error_body);
  for (std::string* name : {&error.code, &error.region, &error.endpoint}) {
    if (!is_name(*name) || credentials_.is_betrayed_by(*name)) name->clear();
  }
  error.message = credentials_.is_betrayed_by(error.message) ? "" : without_likely_keys(error.message);
  return error;
}

Outcome S3Store::explain(const Job& job, const WireRequest& sent, const AnswerHead& head, std::string_view error_body) {
  const S3Error error = read_error(error_body);
  std::string region = !head.bucket_region.empty() ? head.bucket_region : error.region;
  if (!is_name(region) || credentials_.is_betrayed_by(region)) region.clear();
  const bool names_other_region = !region.empty() && region != sent.region;
  if ((head.status >= 300 && head.status < 400 && head.status != 304) || (head.status == 400 && names_other_region)) {
    return explain_redirect(job, sent, head, region, error.endpoint);
  }
  if (error.code == "RequestTimeTooSkewed" && !head.date.empty()) {
    const std::int64_t skew = curl_getdate(head.date.c_str(), nullptr) - std::time(nullptr);
    Outcome outcome = explain_credentials(sent, head, fmt::format("{}: clocks differ by {} s", error.code, skew));
    if (std::abs(skew) < kMaxSkewS && clock_skew_s_.exchange(skew) != skew) outcome.try_again_now = true;
    return outcome;
  }
  if (is_one_of(error.code, kCredentialCodes) || head.status == 401) return explain_credentials(sent, head, error.code);
  if (error.code == "NoSuchBucket")
    return Outcome::failed(Reason::kManifest, fmt::format("bucket \"{}\" does not exist", job.at.bucket));

  Outcome outcome = explain_status(head, shown(error.code, error.message));
  // 503 is what S3 says when it is asked too fast, whatever the body says, and also when it is broken: slowing down
  // helps both.
  if (head.status == 503 || is_one_of(error.code, kThrottleCodes)) {
    outcome.is_throttled = true;
    if (head.status == 503 && !error.code.empty() && !is_one_of(error.code, kThrottleCodes)) return outcome;
    outcome.status = Status(Reason::kFetchThrottled, outcome.status.message());
  }
  return outcome;
}

}  // namespace stoker

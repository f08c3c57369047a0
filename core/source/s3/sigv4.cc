#include "source/s3/sigv4.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <array>

#include "base/hash.h"
#include "source/url.h"

namespace stoker {
namespace {

std::string hmac(std::string_view key, std::string_view data) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> out;
  unsigned int n = 0;
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), reinterpret_cast<const unsigned char*>(data.data()),
       data.size(), out.data(), &n);
  return {reinterpret_cast<const char*>(out.data()), n};
}

std::string hex(std::string_view bytes) {
  static constexpr std::string_view kHex = "0123456789abcdef";
  std::string out;
  out.reserve(bytes.size() * 2);
  for (const char c : bytes) {
    out += kHex[static_cast<unsigned char>(c) >> 4];
    out += kHex[static_cast<unsigned char>(c) & 15];
  }
  return out;
}

std::string timestamp(std::time_t now) {
  std::tm utc{};
  gmtime_r(&now, &utc);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y%m%dT%H%M%SZ", &utc);
  return text.data();
}

// Outer blanks go, inner runs become one: the form in which values are signed.
std::string trimmed(std::string_view value) {
  std::string out;
  for (const char c : value) {
    if (c == ' ' && (out.empty() || out.back() == ' ')) continue;
    out += c;
  }
  if (!out.empty() && out.back() == ' ') out.pop_back();
  return out;
}

std::string canonical_query(const std::vector<std::pair<std::string, std::string>>& query) {
  std::vector<std::pair<std::string, std::string>> encoded;
  encoded.reserve(query.size());
  for (const auto& [name, value] : query)
    encoded.emplace_back(percent_encode(name, false), percent_encode(value, false));
  std::sort(encoded.begin(), encoded.end());
  std::string out;
  for (const auto& [name, value] : encoded) {
    if (!out.empty()) out += '&';
    out.append(name).append("=").append(value);
  }
  return out;
}

}  // namespace

std::string SigV4::signing_key(const S3Keys& keys, std::string_view region, std::string_view day) {
  std::string wanted(day);
  wanted.append("/").append(region).append("/").append(keys.secret_access_key);
  MutexLock lock(mu_);
  if (cached_for_ != wanted) {
    cached_key_ = hmac(hmac(hmac(hmac("AWS4" + keys.secret_access_key, day), region), "s3"), "aws4_request");
    cached_for_ = std::move(wanted);
  }
  return cached_key_;
}

Signature SigV4::sign(const SignedRequest& request, const S3Keys& keys, std::string_view region, std::time_t now) {
  const std::string stamp = timestamp(now);
  const std::string day = stamp.substr(0, 8);
  Signature out;
  out.encoded_path = percent_encode(request.path, true);
  out.encoded_query = canonical_query(request.query);
  out.headers = request.headers;
  out.headers.emplace_back("x-amz-content-sha256", request.payload_sha256);
  out.headers.emplace_back("x-amz-date", stamp);
  if (!keys.session_token.empty()) out.headers.emplace_back("x-amz-security-token", keys.session_token);

  auto signed_headers = out.headers;
  signed_headers.emplace_back("host", request.host);
  std::sort(signed_headers.begin(), signed_headers.end());
  std::string names;
  std::string canonical(request.method);
  canonical.append("\n").append(out.encoded_path).append("\n").append(out.encoded_query).append("\n");
  for (const auto& [name, value] : signed_headers) {
    canonical.append(name).append(":").append(trimmed(value)).append("\n");
    if (!names.empty()) names += ';';
    names += name;
  }
  canonical.append("\n").append(names).append("\n").append(request.payload_sha256);

  std::string scope = day;
  scope.append("/").append(region).append("/s3/aws4_request");
  std::string to_sign = "AWS4-HMAC-SHA256\n";
  to_sign.append(stamp).append("\n").append(scope).append("\n").append(sha256_hex(canonical));
  std::string authorization = "AWS4-HMAC-SHA256 Credential=";
  authorization.append(keys.access_key_id)
      .append("/")
      .append(scope)
      .append(", SignedHeaders=")
      .append(names)
      .append(", Signature=");
  authorization += hex(hmac(signing_key(keys, region, day), to_sign));
  out.headers.emplace_back("authorization", std::move(authorization));
  return out;
}

}  // namespace stoker

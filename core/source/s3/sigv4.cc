#include "source/s3/sigv4.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <initializer_list>
#include <memory>

#include "source/url.h"

namespace stoker {
namespace {

struct ContextDeleter {
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
};

// SHA-256 and HMAC-SHA-256 (RFC 2104) in one context that is used again. OpenSSL's one-call forms look the algorithm up
// by its name each time, which takes longer than hashing a request.
class Hasher {
 public:
  using Hash = std::array<unsigned char, 32>;

  Hash hash(std::initializer_list<std::string_view> parts) {
    static const EVP_MD* const sha256 = EVP_MD_fetch(nullptr, "SHA256", nullptr);
    Hash out{};
    EVP_DigestInit_ex(context_.get(), sha256, nullptr);
    for (const std::string_view part : parts) EVP_DigestUpdate(context_.get(), part.data(), part.size());
    EVP_DigestFinal_ex(context_.get(), out.data(), nullptr);
    return out;
  }

  Hash hmac(std::string_view key, std::string_view data) {
    std::array<char, 64> inner{}, outer{};
    if (key.size() > inner.size()) {
      const Hash shorter = hash({key});
      std::copy(shorter.begin(), shorter.end(), inner.begin());
    } else {
      std::copy(key.begin(), key.end(), inner.begin());
    }
    for (std::size_t i = 0; i < inner.size(); ++i) {
      outer[i] = static_cast<char>(inner[i] ^ 0x5C);
      inner[i] = static_cast<char>(inner[i] ^ 0x36);
    }
    const Hash first = hash({text(inner), data});
    return hash({text(outer), text(first)});
  }

  template <typename T, std::size_t N>
  static std::string_view text(const std::array<T, N>& bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), N};
  }

 private:
  std::unique_ptr<EVP_MD_CTX, ContextDeleter> context_{EVP_MD_CTX_new()};
};

void append_hex(std::string& out, const Hasher::Hash& bytes) {
  static constexpr std::string_view kHex = "0123456789abcdef";
  std::array<char, 2 * sizeof(Hasher::Hash)> text;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    text[2 * i] = kHex[bytes[i] >> 4];
    text[2 * i + 1] = kHex[bytes[i] & 15];
  }
  out.append(text.data(), text.size());
}

std::string timestamp(std::time_t now) {
  const std::chrono::sys_seconds at{std::chrono::seconds(now)};
  const auto midnight = std::chrono::floor<std::chrono::days>(at);
  const std::chrono::year_month_day day(midnight);
  const std::chrono::hh_mm_ss time(at - midnight);
  std::string text = "00000000T000000Z";
  const auto put = [&](std::size_t column, auto number) {
    text[column] = static_cast<char>('0' + number / 10 % 10);
    text[column + 1] = static_cast<char>('0' + number % 10);
  };
  const int year = static_cast<int>(day.year());
  put(0, year / 100);
  put(2, year % 100);
  put(4, static_cast<unsigned>(day.month()));
  put(6, static_cast<unsigned>(day.day()));
  put(9, time.hours().count());
  put(11, time.minutes().count());
  put(13, time.seconds().count());
  return text;
}

void append_line(std::string& out, std::string_view name, std::string_view value) {
  out.reserve(name.size() + 2 + value.size());
  out.append(name).append(": ").append(value);
}

// Outer blanks go, inner runs become one: the form in which values are signed.
void append_trimmed(std::string& out, std::string_view value) {
  const std::size_t begin = out.size();
  for (const char c : value) {
    if (c == ' ' && (out.size() == begin || out.back() == ' ')) continue;
    out += c;
  }
  if (out.size() > begin && out.back() == ' ') out.pop_back();
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
  MutexLock lock(mu_);
  if (cached_.day != day || cached_.region != region || cached_.secret != keys.secret_access_key) {
    Hasher hasher;
    Hasher::Hash key = hasher.hmac("AWS4" + keys.secret_access_key, day);
    for (const std::string_view next : {region, std::string_view("s3"), std::string_view("aws4_request")})
      key = hasher.hmac(Hasher::text(key), next);
    cached_ = {std::string(day), std::string(region), keys.secret_access_key, std::string(Hasher::text(key))};
  }
  return cached_.key;
}

Signature SigV4::sign(const SignedRequest& request, const S3Keys& keys, std::string_view region, std::time_t now) {
  const std::string stamp = timestamp(now);
  const std::string_view day = std::string_view(stamp).substr(0, 8);
  Signature out;
  out.encoded_path = percent_encode(request.path, true);
  out.encoded_query = canonical_query(request.query);
  std::vector<std::pair<std::string_view, std::string_view>> signed_headers = request.headers;
  signed_headers.reserve(request.headers.size() + 4);
  signed_headers.emplace_back("x-amz-content-sha256", request.payload_sha256);
  signed_headers.emplace_back("x-amz-date", stamp);
  if (!keys.session_token.empty()) signed_headers.emplace_back("x-amz-security-token", keys.session_token);
  out.headers.reserve(signed_headers.size() + 2);  // one is for the caller to add
  for (const auto& [name, value] : signed_headers) append_line(out.headers.emplace_back(), name, value);
  signed_headers.emplace_back("host", request.host);
  std::sort(signed_headers.begin(), signed_headers.end());
  std::string names, canonical;
  names.reserve(128);
  canonical.reserve(512 + out.encoded_path.size() + out.encoded_query.size() + keys.session_token.size());
  canonical.append(request.method).append("\n").append(out.encoded_path).append("\n").append(out.encoded_query) += '\n';
  for (const auto& [name, value] : signed_headers) {
    canonical.append(name).append(":");
    append_trimmed(canonical, value);
    canonical += '\n';
    if (!names.empty()) names += ';';
    names += name;
  }
  canonical.append("\n").append(names).append("\n").append(request.payload_sha256);

  thread_local Hasher hasher;
  std::string scope;
  scope.reserve(64);
  scope.append(day);
  scope.append("/").append(region).append("/s3/aws4_request");
  std::string to_sign;
  to_sign.reserve(192);
  to_sign.append("AWS4-HMAC-SHA256\n").append(stamp).append("\n").append(scope).append("\n");
  append_hex(to_sign, hasher.hash({canonical}));
  std::string& authorization = out.headers.emplace_back();
  authorization.reserve(256 + names.size());
  authorization.append("authorization: AWS4-HMAC-SHA256 Credential=")
      .append(keys.access_key_id)
      .append("/")
      .append(scope);
  authorization.append(", SignedHeaders=").append(names).append(", Signature=");
  append_hex(authorization, hasher.hmac(signing_key(keys, region, day), to_sign));
  return out;
}

}  // namespace stoker

#include "source/url.h"

#include <algorithm>
#include <array>
#include <cctype>

namespace stoker {
namespace {

constexpr std::size_t kMaxShown = 256;

bool is_alpha(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

int hex_value(char c) {
  if (is_digit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

struct Split {
  std::string scheme;     // lower case; empty: a path
  std::string_view rest;  // after "://", or the whole path
};

Split split_scheme(std::string_view url) {
  std::size_t n = 0;
  while (n < url.size() &&
         (is_alpha(url[n]) || (n > 0 && (is_digit(url[n]) || url[n] == '+' || url[n] == '-' || url[n] == '.')))) {
    ++n;
  }
  std::string scheme(url.substr(0, n));
  std::transform(scheme.begin(), scheme.end(), scheme.begin(),
                 [](char c) { return is_alpha(c) ? static_cast<char>(c | 0x20) : c; });
  if (n > 0 && url.substr(n, 3) == "://") return {std::move(scheme), url.substr(n + 3)};
  if (scheme == "data" && url.substr(n, 1) == ":") return {std::move(scheme), url.substr(n + 1)};
  return {"", url};
}

bool is_served(std::string_view scheme) {
  return scheme == "s3" || scheme == "http" || scheme == "https" || scheme == "mem" || scheme == "file" ||
         scheme == "data";
}

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text.substr(0, kMaxShown)) out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  if (text.size() > kMaxShown) out += "...";
  return out += '"';
}

std::string shortened(const std::string& text) {
  constexpr std::size_t kPrefix = 64;
  if (text.size() <= kPrefix) return text;
  std::size_t n = kPrefix;
  while (n > 0 && (static_cast<unsigned char>(text[n]) & 0xC0) == 0x80) --n;
  return text.substr(0, n) + "... (" + std::to_string(text.size()) + " characters)";
}

// A presigned URL carries its secret in the query, and user:password@ speaks for itself.
std::string public_part(std::string_view url) {
  url = url.substr(0, std::min(url.find_first_of("?#"), url.size()));
  const std::size_t host = url.find("://") + 3;
  const std::size_t end_of_host = std::min(url.find('/', host), url.size());
  const std::size_t at_sign = url.substr(0, end_of_host).rfind('@');
  std::string out(url.substr(0, host));
  out += at_sign == std::string_view::npos || at_sign < host ? url.substr(host) : url.substr(at_sign + 1);
  return out;
}

Status refuse_scheme(std::string_view scheme, std::string_view url) {
  return {Reason::kMediaScheme, quoted(public_part(url)) + ": scheme \"" + std::string(scheme) +
                                    "\" is not served by this version (served: paths, file, s3, http, https, data)"};
}

Result<std::string> path_of_file_url(std::string_view rest, std::string_view url) {
  const std::size_t slash = rest.find('/');
  const std::string_view host = rest.substr(0, slash);
  if (slash == std::string_view::npos || !(host.empty() || host == "localhost")) {
    return Status(Reason::kMediaScheme,
                  quoted(url) + ": a file:// URL names an absolute path on this machine (file:///folder/name)");
  }
  return percent_decode(rest.substr(slash));
}

// Letters, digits, '.', '-', '_': what any S3-like store allows. Anything else could change the host of a virtual-host
// URL.
bool is_bucket_name(std::string_view name) {
  return !name.empty() && name.size() <= 255 && name.front() != '.' && name.front() != '-' &&
         std::all_of(name.begin(), name.end(),
                     [](char c) { return is_alpha(c) || is_digit(c) || c == '.' || c == '-' || c == '_'; });
}

}  // namespace

Result<std::string> resolve_media(std::string_view reference, std::string_view media_root) {
  if (reference.empty()) return Status(Reason::kMediaNotFound, "the media reference is empty");
  const Split split = split_scheme(reference);
  if (split.scheme == "file") return path_of_file_url(split.rest, reference);
  if (!split.scheme.empty()) {
    if (!is_served(split.scheme)) return refuse_scheme(split.scheme, reference);
    if (split.scheme == "data") return std::string(reference);
    return split.scheme + "://" + std::string(split.rest);
  }
  if (reference.front() == '/') return std::string(reference);

  const Split root = split_scheme(media_root);
  std::string joined(media_root);
  if (root.scheme == "file") {
    STOKER_TRY(joined, path_of_file_url(root.rest, media_root));
  } else if (root.scheme == "data" || (!root.scheme.empty() && !is_served(root.scheme))) {
    return refuse_scheme(root.scheme, media_root);
  } else if (root.scheme.empty() && (media_root.empty() || media_root.front() != '/')) {
    return Status(Reason::kSettings, "the media root " + quoted(media_root) +
                                         " is neither an absolute folder nor a URL, and the reference " +
                                         quoted(reference) + " is relative");
  }
  if (joined.back() != '/') joined += '/';
  return joined.append(reference);
}

Result<Location> parse_location(std::string_view url) {
  Split split = split_scheme(url);
  Location at;
  if (split.scheme.empty()) {
    if (url.empty()) return Status(Reason::kMediaNotFound, "an empty path");
    at.key = std::string(url);
    return at;
  }
  if (split.scheme == "file") {
    STOKER_TRY(at.key, path_of_file_url(split.rest, url));
    return at;
  }
  if (split.scheme == "mem") {
    at.kind = Location::Kind::kMemory;
    at.key = std::string(split.rest);
    return at;
  }
  if (split.scheme == "data") {
    at.kind = Location::Kind::kData;
    at.key = std::string(url);
    return at;
  }
  if (split.scheme == "http" || split.scheme == "https") {
    at.kind = Location::Kind::kHttp;
    at.key = split.scheme + "://" + std::string(split.rest);
    return at;
  }
  if (split.scheme != "s3") return refuse_scheme(split.scheme, url);
  at.kind = Location::Kind::kS3;
  const std::size_t slash = std::min(split.rest.find('/'), split.rest.size());
  at.bucket = std::string(split.rest.substr(0, slash));
  at.key = std::string(split.rest.substr(std::min(slash + 1, split.rest.size())));
  if (!is_bucket_name(at.bucket)) return Status(Reason::kMediaNotFound, quoted(url) + ": no bucket can have this name");
  if (at.key.empty()) return Status(Reason::kMediaNotFound, quoted(url) + ": a bucket without a key");
  return at;
}

std::string shown_media(std::string_view reference) {
  constexpr std::size_t kLongestName = 255;  // of a file, on every system
  const std::string scheme = split_scheme(reference.substr(0, 16)).scheme;
  std::string shown(reference);
  const bool is_literal = scheme.empty() || scheme == "s3" || scheme == "mem" || scheme == "file" || scheme == "data";
  if (!is_literal) {
    shown = public_part(reference);
    if (reference.find('?') != std::string_view::npos) shown += "?...";
  }
  // Base64 has slashes, so it is not its last name that is long, but all of it.
  return scheme == "data" || shown.size() > 4 * kLongestName ? shortened(shown) : shown;
}

std::string Location::shown() const {
  switch (kind) {
    case Kind::kFile:
    case Kind::kData:
      return quoted(shown_media(key));
    case Kind::kS3:
      return quoted("s3://" + bucket + "/" + key);
    case Kind::kMemory:
      return quoted("mem://" + key);
    case Kind::kHttp:
      break;
  }
  return quoted(public_part(key));
}

std::string percent_encode(std::string_view bytes, bool keep_slash) {
  static constexpr std::string_view kHex = "0123456789ABCDEF";
  std::string out;
  out.reserve(bytes.size() + 16);
  for (const char c : bytes) {
    if (is_alpha(c) || is_digit(c) || c == '-' || c == '_' || c == '.' || c == '~' || (c == '/' && keep_slash)) {
      out += c;
    } else {
      const auto byte = static_cast<unsigned char>(c);
      out += '%';
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    }
  }
  return out;
}

std::string percent_decode(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const int high = text[i] == '%' && i + 2 < text.size() ? hex_value(text[i + 1]) : -1;
    const int low = high >= 0 ? hex_value(text[i + 2]) : -1;
    if (low >= 0) {
      out += static_cast<char>(high * 16 + low);
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

}  // namespace stoker

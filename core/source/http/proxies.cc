#include "source/http/proxies.h"

#include <curl/curl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <memory>

#include <fmt/format.h>

#include "source/http/ip_address.h"

namespace stoker {
namespace {

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

std::string upper(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return out;
}

// "user:secret@Host:80/x" -> "host" and "80"; an IPv6 address without its brackets.
struct HostPort {
  std::string host, port;
};
HostPort host_of(std::string_view url) {
  if (const std::size_t at = url.find("://"); at != std::string_view::npos) url.remove_prefix(at + 3);
  url = url.substr(0, url.find_first_of("/?#"));
  if (const std::size_t at = url.rfind('@'); at != std::string_view::npos) url.remove_prefix(at + 1);
  if (!url.empty() && url.front() == '[') {
    const std::size_t end = std::min(url.find(']'), url.size());
    const std::string_view rest = url.substr(std::min(end + 1, url.size()));
    return {lower(url.substr(1, end - 1)), std::string(rest.substr(rest.empty() ? 0 : 1))};
  }
  if (std::count(url.begin(), url.end(), ':') > 1) return {lower(url), ""};  // IPv6 without brackets
  const std::size_t colon = std::min(url.find(':'), url.size());
  return {lower(url.substr(0, colon)), std::string(url.substr(std::min(colon + 1, url.size())))};
}

bool is_loopback(const std::string& host) {
  if (host == "localhost" || host.ends_with(".localhost") || host == "::1") return true;
  const auto ip = IpAddress::parse(host);
  return ip && ip->family == AF_INET && ip->bytes[0] == 127;
}

// "10.0.0.0/8"
bool is_in_network(const std::string& host, const std::string& network) {
  const std::size_t slash = network.find('/');
  if (slash == std::string::npos) return false;
  const auto ip = IpAddress::parse(host);
  const auto base = IpAddress::parse(network.substr(0, slash));
  if (!ip || !base) return false;
  std::size_t n_bits = 0;
  const char* const end = network.data() + network.size();
  const auto [stop, error] = std::from_chars(network.data() + slash + 1, end, n_bits);
  if (error != std::errc() || stop != end || ip->family != base->family) return false;
  if (n_bits > (ip->family == AF_INET ? 32U : 128U)) return false;
  for (std::size_t i = 0; i < n_bits; ++i) {
    if (((ip->bytes[i / 8] ^ base->bytes[i / 8]) >> (7 - i % 8) & 1) != 0) return false;
  }
  return true;
}

// "example.org" and ".example.org" mean the host and all below it.
bool excepts(const std::string& exception, const HostPort& to) {
  if (exception == "*" || is_in_network(to.host, exception)) return true;
  HostPort of = host_of(exception);
  if (!of.port.empty() && of.port != to.port) return false;
  while (of.host.starts_with("*") || of.host.starts_with(".")) of.host.erase(0, 1);
  return !of.host.empty() && (to.host == of.host || to.host.ends_with("." + of.host));
}

bool is_url(const std::string& text) {
  struct Free {
    void operator()(CURLU* url) const { curl_url_cleanup(url); }
  };
  const std::unique_ptr<CURLU, Free> url(curl_url());
  if (curl_url_set(url.get(), CURLUPART_URL, text.c_str(), CURLU_NON_SUPPORT_SCHEME | CURLU_GUESS_SCHEME) != CURLUE_OK)
    return false;
  char* scheme = nullptr;
  curl_url_get(url.get(), CURLUPART_SCHEME, &scheme, 0);
  const std::string name = scheme ? scheme : "";
  curl_free(scheme);
  constexpr std::array kKnown = {"http", "https", "socks4", "socks4a", "socks5", "socks5h"};
  return text.find("://") == std::string::npos || std::find(kKnown.begin(), kKnown.end(), name) != kKnown.end();
}

}  // namespace

Result<Proxies::Choice> Proxies::choose(const StorageSettings& settings, const char* scheme) {
  Choice choice;
  if (!settings.proxy.empty()) {
    choice = {settings.proxy, "storage.proxy"};
  } else {
    for (const std::string& name : {fmt::format("{}_proxy", scheme), std::string("all_proxy")}) {
      for (const std::string& spelled : {name, upper(name)}) {
        if (choice.empty()) choice = {settings.environment(spelled.c_str()).value_or(""), spelled};
      }
    }
  }
  if (choice.empty()) return Choice();
  if (is_url(choice.url)) return choice;
  return Status(Reason::kSettings, fmt::format("{} must look like http://host:port; what stands there is not shown, "
                                               "since it may hold a password",
                                               choice.source));
}

Result<Proxies> Proxies::create(const StorageSettings& settings) {
  Proxies proxies;
  if (settings.proxy == "none") return proxies;
  STOKER_TRY(proxies.http_, choose(settings, "http"));
  STOKER_TRY(proxies.https_, choose(settings, "https"));
  if (!settings.proxy.empty()) return proxies;
  const std::string list =
      lower(settings.environment("no_proxy").value_or(settings.environment("NO_PROXY").value_or("")));
  for (std::size_t at = 0; at < list.size();) {
    const std::size_t begin = list.find_first_not_of(", \t", at);
    if (begin == std::string::npos) break;
    at = std::min(list.find_first_of(", \t", begin), list.size());
    proxies.exceptions_.push_back(list.substr(begin, at - begin));
  }
  return proxies;
}

std::string Proxies::of(std::string_view url) const {
  const bool is_https = lower(url.substr(0, 6)) == "https:";
  const Choice& choice = is_https ? https_ : http_;
  if (choice.empty()) return "";
  HostPort to = host_of(url);
  if (to.port.empty()) to.port = is_https ? "443" : "80";
  const bool is_excepted = std::any_of(exceptions_.begin(), exceptions_.end(),
                                       [&](const std::string& exception) { return excepts(exception, to); });
  return is_loopback(to.host) || is_excepted ? "" : choice.url;
}

std::string Proxies::shown() const {
  std::string text;
  for (const Choice* choice : {&https_, &http_}) {
    if (choice->empty()) continue;
    const HostPort at = host_of(choice->url);
    const std::string line = fmt::format("{}:{} (from {})", at.host, at.port, choice->source);
    if (text.find(line) != std::string::npos) continue;
    if (!text.empty()) text += ", ";
    text += line;
  }
  return text;
}

}  // namespace stoker

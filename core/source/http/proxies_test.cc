#include "source/http/proxies.h"

#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "source/testing/fetch_fixture.h"

namespace stoker {
namespace {

using namespace testing;
using ::testing::HasSubstr;
using ::testing::Not;

using Variables = std::map<std::string, std::string>;

StorageSettings with(const Variables& variables, std::string proxy = "") {
  StorageSettings s;
  s.environment = [variables](const char* name) -> std::optional<std::string> {
    const auto it = variables.find(name);
    return it == variables.end() ? std::nullopt : std::optional(it->second);
  };
  s.proxy = std::move(proxy);
  return s;
}

std::string proxy_of(const std::string& url, const Variables& variables, std::string proxy = "") {
  auto proxies = Proxies::create(with(variables, std::move(proxy)));
  EXPECT_TRUE(proxies.ok()) << proxies.status().to_string();
  return proxies->of(url);
}

TEST(Proxies, TheEnvironmentIsReadInBothSpellings) {
  const Variables all = {{"HTTP_PROXY", "http://a:1"}, {"HTTPS_PROXY", "http://b:2"}};
  EXPECT_EQ(proxy_of("http://s3.example.org/k", all), "http://a:1");
  EXPECT_EQ(proxy_of("https://s3.example.org/k", all), "http://b:2");
  EXPECT_EQ(proxy_of("http://s3.example.org/k", {{"HTTP_PROXY", "http://a:1"}, {"http_proxy", "http://c:3"}}),
            "http://c:3");
  EXPECT_EQ(proxy_of("https://s3.example.org/k", {{"ALL_PROXY", "socks5h://d:4"}}), "socks5h://d:4");
  EXPECT_EQ(proxy_of("https://s3.example.org/k", {{"HTTP_PROXY", "http://a:1"}}), "");
  EXPECT_EQ(proxy_of("https://s3.example.org/k", all, "e:5"), "e:5");
  EXPECT_EQ(proxy_of("https://s3.example.org/k", all, "none"), "");
  for (const char* local : {"http://localhost:9000/k", "http://127.0.0.5/k", "http://[::1]:9000/k"}) {
    EXPECT_EQ(proxy_of(local, all, "http://e:5"), "") << local;
  }
}

TEST(Proxies, ExceptionsAreHostsDomainsPortsAndNetworks) {
  const auto is_direct = [](const std::string& url, const std::string& no_proxy) {
    return proxy_of(url, {{"HTTP_PROXY", "http://a:1"}, {"NO_PROXY", no_proxy}}).empty();
  };
  EXPECT_TRUE(is_direct("http://minio.lan:9000/b/k", "other, .LAN"));
  EXPECT_TRUE(is_direct("http://minio.lan:9000/b/k", "minio.lan"));
  EXPECT_TRUE(is_direct("http://minio.lan:9000/b/k", "minio.lan:9000"));
  EXPECT_TRUE(is_direct("http://minio.lan:9000/b/k", "*"));
  EXPECT_TRUE(is_direct("http://b.minio.lan/k", "*.minio.lan"));
  EXPECT_TRUE(is_direct("http://10.1.2.3/k", "10.0.0.0/8"));
  EXPECT_TRUE(is_direct("http://[fd00::1]/k", "fd00::/8"));
  EXPECT_TRUE(is_direct("http://[fd00::1]:80/k", "fd00::1"));
  EXPECT_FALSE(is_direct("http://xminio.lan/b/k", "minio.lan"));
  EXPECT_FALSE(is_direct("http://minio.lan:9000/b/k", "minio.lan:9001"));
  EXPECT_FALSE(is_direct("http://11.1.2.3/k", "10.0.0.0/8"));
  EXPECT_FALSE(is_direct("http://minio.lan/k", ", ,"));
  EXPECT_FALSE(is_direct("http://minio.lan/k?u=x@10.0.0.1", "10.0.0.0/8"));
}

TEST(Proxies, WhatIsWrongIsSaidWithoutItsPassword) {
  for (const char* wrong : {"ftp://user:hushhush@host", "http://", "http://user:hushhush@ho st:80"}) {
    auto proxies = Proxies::create(with({{"HTTPS_PROXY", wrong}}));
    ASSERT_EQ(proxies.status().reason(), Reason::kSettings) << wrong;
    EXPECT_THAT(proxies.status().message(), HasSubstr("HTTPS_PROXY"));
    EXPECT_THAT(proxies.status().message(), Not(HasSubstr("hush")));
  }
  const auto proxies = Proxies::create(with({{"HTTPS_PROXY", "http://user:hushhush@Host:80"}}));
  EXPECT_EQ(proxies->shown(), "host:80 (from HTTPS_PROXY)");
}

// The proxy is the loopback server: what it sees is what a proxy would.
TEST(Proxies, RequestsGoThroughThemAndPasswordsStayInside) {
  const Lines lines;
  LoopbackServer proxy([](const ServerRequest& r) {
    const auto given = r.headers.find("proxy-authorization");
    if (given == r.headers.end() || given->second != "Basic dXNlcjpodXNoaHVzaA==") return error_reply(407, "");
    if (r.method == "CONNECT") return error_reply(502, "");  // it would have to speak TLS
    return serve(r);
  });
  LoopbackServer direct([](const ServerRequest& r) { return serve(r); });
  auto settings = settings_for(direct);
  settings.outage_limit_s = 0.05;
  settings.storage.proxy = "http://user:hushhush@127.0.0.1:" + std::to_string(proxy.port());
  settings.storage.endpoint = "http://store.test:81";  // a name that only the proxy knows
  const auto fetcher = make(settings);
  auto object = fetcher->fetch(request_for("s3://b/k"));
  ASSERT_TRUE(object.ok()) << object.status().to_string();
  EXPECT_EQ(text(*object), object_of("http://store.test:81/b/k"));
  EXPECT_TRUE(fetcher->fetch(request_for("http://other.test/x")).ok());
  EXPECT_EQ(proxy.targets(), (std::vector<std::string>{"http://store.test:81/b/k", "http://other.test/x"}));

  auto tunnel = fetcher->fetch(request_for("https://store.test/k"));
  EXPECT_EQ(tunnel.status().reason(), Reason::kOutage) << tunnel.status().to_string();
  EXPECT_THAT(tunnel.status().message(), HasSubstr("the proxy answered 502"));
  EXPECT_EQ(proxy.targets().back(), "store.test:443");

  EXPECT_TRUE(fetcher->fetch(request_for(direct.endpoint() + "/x")).ok()) << "loopback is asked directly";
  EXPECT_EQ(direct.n_requests(), 1);

  settings.storage.proxy = "http://user:wronghush@127.0.0.1:" + std::to_string(proxy.port());
  for (const char* url : {"https://store.test/k", "s3://b/k"}) {
    auto refused = make(settings)->fetch(request_for(url));
    EXPECT_EQ(refused.status().reason(), Reason::kFetchCredentials) << refused.status().to_string();
    EXPECT_THAT(refused.status().message(), HasSubstr("407"));
    EXPECT_THAT(refused.status().message(), Not(HasSubstr("hush")));
  }
  EXPECT_THAT(lines.all(), HasSubstr("proxy 127.0.0.1:"));
  EXPECT_THAT(lines.all(), Not(HasSubstr("hush")));
}

}  // namespace
}  // namespace stoker

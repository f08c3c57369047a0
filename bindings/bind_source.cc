#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <latch>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bind.h"
#include "source/s3/error_xml.h"
#include "source/s3/s3_store.h"
#include "source/s3/sigv4.h"
#include "source/source.h"
#include "source/url.h"

namespace nb = nanobind;

namespace stoker {
namespace {

using Pairs = std::vector<std::pair<std::string, std::string>>;
using Environ = std::map<std::string, std::string>;

// Everything by name, as the settings call it.
template <typename T>
void take(nb::dict& from, const char* name, T& into) {
  if (!from.contains(name)) return;
  into = nb::cast<T>(from[name]);
  nb::del(from[name]);
}

StorageSettings storage_of(const nb::dict& given, const std::optional<Environ>& environ) {
  nb::dict left;
  for (const auto& [name, value] : given) left[name] = value;
  StorageSettings s;
  std::string addressing = "auto";
  take(left, "endpoint", s.endpoint);
  take(left, "region", s.region);
  take(left, "addressing", addressing);
  take(left, "access_key_id", s.access_key_id);
  take(left, "secret_access_key", s.secret_access_key);
  take(left, "session_token", s.session_token);
  take(left, "profile", s.profile);
  take(left, "anonymous", s.anonymous);
  take(left, "requester_pays", s.requester_pays);
  take(left, "ca_file", s.ca_file);
  take(left, "verify_tls", s.verify_tls);
  take(left, "proxy", s.proxy);
  take(left, "http2", s.http2);
  for (const auto& [name, value] : left) {
    throw_status({Reason::kSettings, "no storage setting is called " + nb::cast<std::string>(nb::str(name))});
  }
  if (addressing == "path") s.addressing = Addressing::kPath;
  if (addressing == "virtual") s.addressing = Addressing::kVirtualHost;
  if (environ) {
    s.environment = [variables = *environ](const char* name) -> std::optional<std::string> {
      const auto it = variables.find(name);
      return it == variables.end() ? std::nullopt : std::optional(it->second);
    };
  }
  return s;
}

nb::tuple fetch(const std::string& url, std::uint64_t offset, std::optional<std::uint64_t> length,
                const std::string& if_match, const nb::dict& storage, double outage_limit_s,
                const std::optional<Environ>& environ) {
  FetchSettings settings;
  settings.storage = storage_of(storage, environ);
  settings.outage_limit_s = outage_limit_s;
  Result<FetchedObject> object = [&]() -> Result<FetchedObject> {
    nb::gil_scoped_release unlocked;
    STOKER_TRY(const std::unique_ptr<Fetcher> fetcher, Fetcher::create(std::move(settings)));
    FetchRequest request;
    request.url = url;
    request.offset = offset;
    request.length = length;
    request.if_match = if_match;
    return fetcher->fetch(std::move(request));
  }();
  const FetchedObject got = value_or_throw(std::move(object));
  return nb::make_tuple(nb::bytes(got.bytes.data(), got.bytes.size()), got.total_bytes, got.etag);
}

nb::list fetch_all(const std::vector<std::string>& urls, int concurrency, const nb::dict& storage,
                   double outage_limit_s, const std::optional<Environ>& environ) {
  FetchSettings settings;
  settings.storage = storage_of(storage, environ);
  settings.outage_limit_s = outage_limit_s;
  settings.concurrency = concurrency;
  std::vector<std::optional<Result<FetchedObject>>> objects(urls.size());
  const Status status = [&]() -> Status {
    nb::gil_scoped_release unlocked;
    STOKER_TRY(const std::unique_ptr<Fetcher> fetcher, Fetcher::create(std::move(settings)));
    std::latch left(static_cast<std::ptrdiff_t>(urls.size()));
    for (std::size_t i = 0; i < urls.size(); ++i) {
      fetcher->submit({.url = urls[i], .priority = i}, [&objects, &left, i](Result<FetchedObject> object) {
        objects[i] = std::move(object);
        left.count_down();
      });
    }
    left.wait();
    return {};
  }();
  check_or_throw(status);
  nb::list out;
  for (auto& object : objects) {
    const FetchedObject got = value_or_throw(*std::move(object));
    out.append(nb::bytes(got.bytes.data(), got.bytes.size()));
  }
  return out;
}

std::pair<std::string, Pairs> sign_s3(const std::string& host, const std::string& path, const Pairs& query,
                                      const Pairs& headers, const std::string& access_key_id,
                                      const std::string& secret_access_key, const std::string& session_token,
                                      const std::string& region, std::int64_t unix_time) {
  SignedRequest request;
  request.host = host;
  request.path = path;
  request.query = query;
  request.headers.assign(headers.begin(), headers.end());
  SigV4 signer;
  const Signature s = signer.sign(request, {access_key_id, secret_access_key, session_token}, region,
                                  static_cast<std::time_t>(unix_time));
  Pairs sent;
  for (const std::string& line : s.headers) {
    const std::size_t colon = line.find(": ");
    sent.emplace_back(line.substr(0, colon), line.substr(colon + 2));
  }
  return {s.encoded_path + (s.encoded_query.empty() ? "" : "?" + s.encoded_query), std::move(sent)};
}

// How one object would be asked for, without asking: URL and header lines.
std::pair<std::string, std::vector<std::string>> prepare_s3(const std::string& url, const nb::dict& storage,
                                                            const Environ& environ) {
  const std::unique_ptr<S3Store> store = value_or_throw(S3Store::create(storage_of(storage, environ)));
  Job job;
  job.request.url = url;
  job.at = value_or_throw(parse_location(url));
  WireRequest wire = value_or_throw(store->prepare(job));
  return {std::move(wire.url), std::move(wire.headers)};
}

std::map<std::string, std::string> s3_error(nb::bytes body) {
  S3Error error = parse_s3_error({body.c_str(), body.size()});
  return {{"code", error.code}, {"message", error.message}, {"region", error.region}, {"endpoint", error.endpoint}};
}

}  // namespace

void bind_source(nb::module_& m) {
  m.def("fetch", &fetch, nb::arg("url"), nb::kw_only(), nb::arg("offset") = 0, nb::arg("length") = nb::none(),
        nb::arg("if_match") = "", nb::arg("storage") = nb::dict(), nb::arg("outage_limit_s") = 600.0,
        nb::arg("environ") = nb::none(),
        "Reads one object or a part of it: (bytes, bytes in all, tag). `storage` holds settings by name; `environ` "
        "replaces the "
        "process's environment.");
  m.def("fetch_all", &fetch_all, nb::arg("urls"), nb::kw_only(), nb::arg("concurrency") = 64,
        nb::arg("storage") = nb::dict(), nb::arg("outage_limit_s") = 600.0, nb::arg("environ") = nb::none(),
        "Reads whole objects, many at a time: their bytes, in the order of `urls`. The first error is raised.");
  m.def(
      "download",
      [](const std::string& url, const std::string& path, const nb::dict& storage, double outage_limit_s) {
        FetchSettings settings;
        settings.storage = storage_of(storage, std::nullopt);
        settings.outage_limit_s = outage_limit_s;
        const Status status = [&]() -> Status {
          nb::gil_scoped_release unlocked;
          STOKER_TRY(const std::unique_ptr<Fetcher> fetcher, Fetcher::create(std::move(settings)));
          return download(*fetcher, url, path);
        }();
        check_or_throw(status);
      },
      nb::arg("url"), nb::arg("path"), nb::kw_only(), nb::arg("storage") = nb::dict(),
      nb::arg("outage_limit_s") = 600.0,
      "Mirrors one object into a local file, which appears only when it is complete.");
  m.def(
      "resolve_media",
      [](const std::string& reference, const std::string& media_root) {
        return value_or_throw(resolve_media(reference, media_root));
      },
      nb::arg("reference"), nb::arg("media_root"), "What a row's media reference means: an absolute path or a URL.");
  m.def("sign_s3", &sign_s3, nb::kw_only(), nb::arg("host"), nb::arg("path"), nb::arg("query") = Pairs(),
        nb::arg("headers") = Pairs(), nb::arg("access_key_id"), nb::arg("secret_access_key"),
        nb::arg("session_token") = "", nb::arg("region"), nb::arg("unix_time"),
        "Signs a GET: (encoded path and query, headers to send beside Host).");
  m.def("prepare_s3", &prepare_s3, nb::arg("url"), nb::kw_only(), nb::arg("storage") = nb::dict(),
        nb::arg("environ") = Environ(), "How an s3:// object would be asked for: (URL, header lines).");
  m.def("parse_s3_error", &s3_error, nb::arg("body"), "The fields of an S3 error body.");
}

}  // namespace stoker

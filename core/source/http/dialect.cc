#include "source/http/dialect.h"

#include <fmt/format.h>

#include "source/cache/cache_stage.h"

namespace stoker {

void add_conditions(const Job& job, std::vector<std::string>& headers) {
  const FetchRequest& request = job.request;
  headers.push_back("Accept-Encoding: identity");  // without it a server may pack as it likes
  if (job.partial) {
    headers.push_back(fmt::format("Range: bytes={}-{}", request.offset + job.partial->n_filled,
                                  request.offset + job.partial->bytes.size() - 1));
    headers.push_back("If-Match: " + job.partial->etag);
    return;
  }
  if (job.reads_whole) {
    // no range
  } else if (request.length) {
    headers.push_back(fmt::format("Range: bytes={}-{}", request.offset,
                                  request.offset + std::max<std::uint64_t>(*request.length, 1) - 1));
  } else if (request.offset > 0) {
    headers.push_back(fmt::format("Range: bytes={}-", request.offset));
  }
  if (!request.if_match.empty()) headers.push_back("If-Match: " + request.if_match);
  if (job.kept && !job.kept->etag.empty()) headers.push_back("If-None-Match: " + job.kept->etag);
}

Outcome explain_status(const AnswerHead& head, std::string_view detail) {
  const std::string said = detail.empty() ? fmt::format("the store answered {}", head.status)
                                          : fmt::format("the store answered {}: {}", head.status, detail);
  Reason reason = Reason::kFetchServer;
  switch (head.status) {
    case 401:
    case 407:
      reason = Reason::kFetchCredentials;
      break;
    case 403:
      reason = Reason::kFetchDenied;
      break;
    case 404:
    case 410:
      reason = Reason::kMediaNotFound;
      break;
    case 412:
      reason = Reason::kMediaChanged;
      break;
    case 429:
      reason = Reason::kFetchThrottled;
      break;
    case 301:
    case 302:
    case 303:
    case 307:
    case 308:
      reason = Reason::kFetchRedirect;
      break;
    default:
      break;
  }
  Outcome outcome = Outcome::failed(reason, said);
  outcome.retry_after = head.retry_after;
  outcome.is_throttled = reason == Reason::kFetchThrottled;
  return outcome;
}

Result<WireRequest> PlainHttp::prepare(const Job& job) {
  WireRequest wire;
  wire.follows_redirects = true;
  // What stands in a row is not always a clean URL: bytes that may not go over the wire are encoded, the rest is left
  // alone.
  for (const char c : job.at.key) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte <= 0x20 || byte >= 0x7F) {
      wire.url += percent_encode(std::string_view(&c, 1), false);
    } else {
      wire.url += c;
    }
  }
  add_conditions(job, wire.headers);
  return wire;
}

Outcome PlainHttp::explain(const Job&, const WireRequest&, const AnswerHead& head, std::string_view) {
  Outcome outcome = explain_status(head, "");
  if (head.status == 503) outcome.is_throttled = head.retry_after.has_value();
  return outcome;
}

}  // namespace stoker

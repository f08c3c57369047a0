#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "source/http/answer.h"
#include "source/job.h"

namespace stoker {

/// One HTTP GET as it goes over the wire.
struct WireRequest {
  std::string url;                   ///< encoded; sent as it stands
  std::vector<std::string> headers;  ///< "name: value"
  bool follows_redirects = false;
  std::uint64_t credentials_generation = 0;  ///< for the dialect: what this request was signed with
  std::string region;
};

/// How one kind of HTTP store wants to be asked, and what its refusals mean.
/// Threads: any.
class Dialect {
 public:
  virtual ~Dialect() = default;
  virtual Result<WireRequest> prepare(const Job& job) = 0;
  /// For every status but 200, 206 and 416. The status's message does not name the object; the caller does.
  virtual Outcome explain(const Job& job, const WireRequest& sent, const AnswerHead& head,
                          std::string_view error_body) = 0;
};

/// Range, If-Match, If-None-Match and Accept-Encoding, the same everywhere: for all that was asked for, or for what an
/// earlier try left.
void add_conditions(const Job& job, std::vector<std::string>& headers);
/// What a status means in any dialect. `detail` is what the store said, already safe to show; may be empty.
Outcome explain_status(const AnswerHead& head, std::string_view detail);

/// http:// and https:// without credentials: a plain, unsigned GET. Redirects are followed, at most five.
class PlainHttp final : public Dialect {
 public:
  Result<WireRequest> prepare(const Job& job) override;
  Outcome explain(const Job& job, const WireRequest& sent, const AnswerHead& head,
                  std::string_view error_body) override;
};

}  // namespace stoker

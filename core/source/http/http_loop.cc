#include "source/http/http_loop.h"

#include <curl/curl.h>

#include <array>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "exec/cpu.h"
#include "source/cache/cache_stage.h"
#include "source/http/transfers.h"

namespace stoker {
namespace {

// Until a store has answered once, few are asked: a thousand name lookups and handshakes at the same moment help
// nobody.
constexpr std::size_t kFirstInFlight = 32;
// What libcurl holds for each request in flight, outside of the memory budget: less where there are many. The smaller
// size costs 4 % of CPU time.
constexpr std::size_t kRoomySlots = 512;
constexpr long kReceiveBytes = 64 * 1024;
constexpr long kReceiveBytesOfMany = 16 * 1024;
constexpr long kMaxRedirects = 5;
constexpr int kSameForProof = 3;

}  // namespace

class HttpLoop::Impl {
 public:
  Impl(JobOwner& owner, Dialect& s3, Dialect& plain, HttpSettings settings, AddressBook& book, const Clock& clock)
      : owner_(owner), s3_(s3), plain_(plain), settings_(std::move(settings)), clock_(clock), transfers_(book, clock) {}
  ~Impl() { stop(); }

  Status start(int worker);
  void wake() { transfers_.wake(); }
  void stop() {
    is_stopping_.store(true, std::memory_order_release);
    if (!thread_.joinable()) return;
    wake();
    thread_.join();
  }

 private:
  // One handle and what it is doing now. Handles are reused: options that do not change are set once.
  struct Slot : Transfer {
    explicit Slot(Impl& owner) : Transfer(owner.transfers_), loop(owner) {}

    Impl& loop;
    std::vector<curl_slist> headers;  // linked, each over a line of wire.headers: curl only reads them
    std::array<char, CURL_ERROR_SIZE> error_text{};
    std::size_t at = 0;  // in active_

    std::unique_ptr<Job> job;
    Dialect* dialect = nullptr;
    WireRequest wire;
    Answer answer;
    Nanos started{0};
    Nanos last_progress{0};
    std::optional<Nanos> first_byte;  // from the start on

    /// What the proxy answered to CONNECT, if it refused.
    std::optional<Status> refused_by_proxy() {
      long status = 0;
      if (goes_through_proxy()) curl_easy_getinfo(easy(), CURLINFO_HTTP_CONNECTCODE, &status);
      if (status < 300) return std::nullopt;
      if (status == 407) return Status(Reason::kFetchCredentials, "the proxy refuses the credentials (407)");
      return Status(Reason::kFetchConnect, fmt::format("the proxy answered {}", status));
    }

    void link_headers() {
      headers.resize(wire.headers.size());
      for (std::size_t i = 0; i < headers.size(); ++i) {
        headers[i] = {wire.headers[i].data(), i + 1 < headers.size() ? &headers[i + 1] : nullptr};
      }
    }
  };
  void run();
  void start_jobs();
  void finish_ended();
  void begin(std::unique_ptr<Job> job);
  void configure(Slot& slot);
  Nanos due() const;
  void sweep();
  Nanos sweep_interval() const;
  std::optional<Status> overdue(const Slot& slot) const;
  void finish(Slot& slot, Outcome outcome);
  Outcome outcome_of(Slot& slot, CURLcode code);
  static Status unless_proven(Slot& slot, Status why);
  Status transport_error(const Slot& slot, CURLcode code) const;

  static std::size_t on_header(char* data, std::size_t size, std::size_t n, void* slot);
  static std::size_t on_body(char* data, std::size_t size, std::size_t n, void* slot);

  JobOwner& owner_;
  Dialect& s3_;
  Dialect& plain_;
  const HttpSettings settings_;
  const Clock& clock_;
  int worker_ = -1;

  // The thread's own, but for waking it.
  Transfers transfers_;
  std::vector<std::unique_ptr<Slot>> active_;
  std::vector<std::unique_ptr<Slot>> free_;
  Nanos now_{0};
  Nanos look_again_ = Nanos::max();
  Nanos next_sweep_{0};
  bool has_answers_ = false;

  std::atomic<bool> is_stopping_{false};  // written by stop
  std::thread thread_;
};

Status HttpLoop::Impl::start(int worker) {
  worker_ = worker;
  STOKER_CHECKED(transfers_.start());
  thread_ = std::thread([this] {
    become_io_thread("stoker-http");
    run();
  });
  return {};
}

void HttpLoop::Impl::run() {
  while (!is_stopping_.load(std::memory_order_acquire)) {
    now_ = clock_.now();
    start_jobs();
    transfers_.wait(now_, due());
    now_ = clock_.now();
    // An answer leaves as soon as it is whole: its buffer, still in the cache, then serves the next. That is a fifth of
    // the time with a thousand in flight.
    for (bool more = true; more;) {
      more = transfers_.act_once(now_);
      finish_ended();
    }
    if (!active_.empty() && now_ >= next_sweep_) sweep();
  }
  while (!active_.empty()) {
    Slot& slot = *active_.back();
    transfers_.cancel(slot);
    finish(slot, Outcome::failed(Reason::kStopped, "the fetcher was stopped"));
  }
  free_.clear();
  transfers_.end();
}

void HttpLoop::Impl::finish_ended() {
  while (const auto ended = transfers_.next_ended()) {
    auto& slot = static_cast<Slot&>(ended->transfer);
    finish(slot, outcome_of(slot, ended->code));
  }
}

void HttpLoop::Impl::start_jobs() {
  look_again_ = Nanos::max();
  while (has_answers_ || active_.size() < kFirstInFlight) {
    std::unique_ptr<Job> job = owner_.take(worker_, now_, look_again_);
    if (!job) return;
    begin(std::move(job));
  }
}

void HttpLoop::Impl::begin(std::unique_ptr<Job> job) {
  if (job->is_unwanted()) {
    owner_.settle(worker_, std::move(job), Outcome::failed(Reason::kStopped, "no longer wanted"));
    return;
  }
  Dialect& dialect = job->at.kind == Location::Kind::kS3 ? s3_ : plain_;
  Result<WireRequest> wire = dialect.prepare(*job);
  if (!wire.ok()) {
    owner_.settle(worker_, std::move(job), Outcome::failed(std::move(wire).status()));
    return;
  }
  std::unique_ptr<Slot> slot;
  if (free_.empty()) {
    slot = std::make_unique<Slot>(*this);
    configure(*slot);
  } else {
    slot = std::move(free_.back());
    free_.pop_back();
  }
  slot->dialect = &dialect;
  slot->wire = std::move(wire).value();
  slot->link_headers();
  slot->answer.begin(job->request.offset, job->request.length,
                     {.max_object_bytes = settings_.max_object_bytes,
                      .as_stored = job->request.as_stored,
                      .lease_for = job->request.lease_for},
                     std::exchange(job->partial, std::nullopt));
  slot->job = std::move(job);
  slot->started = slot->last_progress = now_;
  slot->first_byte.reset();
  slot->error_text[0] = '\0';
  CURL* easy = slot->easy();
  curl_easy_setopt(easy, CURLOPT_URL, slot->wire.url.c_str());
  curl_easy_setopt(easy, CURLOPT_HTTPHEADER, slot->headers.empty() ? nullptr : slot->headers.data());
  if (settings_.proxies.any()) {
    const std::string proxy = settings_.proxies.of(slot->wire.url);
    slot->set_goes_through_proxy(!proxy.empty());
    curl_easy_setopt(easy, CURLOPT_PROXY, proxy.c_str());
  }
  curl_easy_setopt(easy, CURLOPT_FOLLOWLOCATION, slot->wire.follows_redirects ? 1L : 0L);
  slot->at = active_.size();
  active_.push_back(std::move(slot));
  if (!transfers_.begin(*active_.back())) {
    finish(*active_.back(), Outcome::failed(Reason::kInternal, "curl_multi_add_handle failed"));
  }
}

void HttpLoop::Impl::configure(Slot& slot) {
  CURL* easy = slot.easy();
  curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, &Impl::on_body);
  curl_easy_setopt(easy, CURLOPT_WRITEDATA, &slot);
  curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, &Impl::on_header);
  curl_easy_setopt(easy, CURLOPT_HEADERDATA, &slot);
  curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, slot.error_text.data());
  curl_easy_setopt(easy, CURLOPT_USERAGENT, "stoker/0.1");
  curl_easy_setopt(easy, CURLOPT_PATH_AS_IS, 1L);  // keys are opaque: "d/./x" and "../x" are names, not places
  curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(easy, CURLOPT_REDIR_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(easy, CURLOPT_MAXREDIRS, kMaxRedirects);
  curl_easy_setopt(easy, CURLOPT_HTTP_VERSION,
                   static_cast<long>(settings_.http2 ? CURL_HTTP_VERSION_2TLS : CURL_HTTP_VERSION_1_1));
  curl_easy_setopt(easy, CURLOPT_PROXY, "");  // the environment is read by Proxies
  curl_easy_setopt(easy, CURLOPT_NOPROXY, "");
  curl_easy_setopt(easy, CURLOPT_BUFFERSIZE, active_.size() < kRoomySlots ? kReceiveBytes : kReceiveBytesOfMany);
  curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(settings_.timeouts.connect.count()));
  curl_easy_setopt(easy, CURLOPT_DNS_SHUFFLE_ADDRESSES, 1L);
  curl_easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L);  // a name server that does not answer must not hold up stop
  curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
  curl_easy_setopt(easy, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
  if (!settings_.ca_file.empty()) curl_easy_setopt(easy, CURLOPT_CAINFO, settings_.ca_file.c_str());
  if (!settings_.verify_tls) {
    curl_easy_setopt(easy, CURLOPT_SSL_VERIFYPEER, 0L);
    curl_easy_setopt(easy, CURLOPT_SSL_VERIFYHOST, 0L);
  }
}

Nanos HttpLoop::Impl::due() const { return active_.empty() ? look_again_ : std::min(look_again_, next_sweep_); }

Nanos HttpLoop::Impl::sweep_interval() const {
  const FetchTimeouts& t = settings_.timeouts;
  const Nanos shortest =
      std::min<Nanos>({t.first_byte, t.stall, t.total.count() > 0 ? t.total : t.stall, owner_.hedge_delay()});
  return std::clamp<Nanos>(shortest / 10, std::chrono::milliseconds(5), std::chrono::milliseconds(100));
}

std::optional<Status> HttpLoop::Impl::overdue(const Slot& slot) const {
  const FetchTimeouts& t = settings_.timeouts;
  const auto seconds = [](auto limit) { return std::chrono::duration<double>(limit).count(); };
  if (slot.job->is_unwanted()) return Status(Reason::kStopped, "no longer wanted");
  if (!slot.first_byte && now_ - slot.started > t.first_byte) {
    return Status(Reason::kFetchTimeout, fmt::format("no first byte of an answer within {} s", seconds(t.first_byte)));
  }
  if (slot.first_byte && now_ - slot.last_progress > t.stall) {
    return Status(Reason::kFetchTimeout,
                  fmt::format("stalled: nothing more for {} s, {}", seconds(t.stall), slot.answer.progress()));
  }
  if (t.total.count() > 0 && now_ - slot.started > t.total) {
    return Status(Reason::kFetchTimeout,
                  fmt::format("not complete within {} s in all, {}", seconds(t.total), slot.answer.progress()));
  }
  return std::nullopt;
}

void HttpLoop::Impl::sweep() {
  next_sweep_ = now_ + sweep_interval();
  const Nanos patience = owner_.hedge_delay();
  for (std::size_t i = active_.size(); i-- > 0;) {  // backwards: finish moves the last one into the gap
    Slot& slot = *active_[i];
    std::optional<Status> why = overdue(slot);
    if (!why) {
      if (!slot.first_byte && !slot.job->race && now_ - slot.started >= patience) owner_.hedge(*slot.job);
      continue;
    }
    transfers_.cancel(slot);
    finish(slot, Outcome::failed(*std::move(why)));
  }
}

void HttpLoop::Impl::finish(Slot& slot, Outcome outcome) {
  outcome.n_wire_bytes = slot.answer.n_received();
  outcome.took = now_ - slot.started;
  outcome.first_byte = slot.first_byte;
  const Code code = outcome.status.code();
  if (code == Code::kUnavailable) outcome.partial = slot.answer.take_partial();
  if (outcome.status.ok() || slot.answer.head().status > 0) has_answers_ = true;
  if (outcome.status.reason() == Reason::kFetchConnect) has_answers_ = false;
  if (code != Code::kOk && code != Code::kCancelled)
    outcome.status = std::move(outcome.status).with(slot.job->at.shown());
  std::unique_ptr<Job> job = std::move(slot.job);
  const std::size_t at = slot.at;
  std::swap(active_[at], active_.back());
  active_[at]->at = at;
  free_.push_back(std::move(active_.back()));
  active_.pop_back();
  owner_.settle(worker_, std::move(job), std::move(outcome));
}

Outcome HttpLoop::Impl::outcome_of(Slot& slot, CURLcode code) {
  Answer& answer = slot.answer;
  const int status = answer.head().status;
  // We end a transfer ourselves when the rest of a body is not wanted; curl calls that a write error.
  const bool has_ended = code == CURLE_OK || code == CURLE_WRITE_ERROR;
  if (!has_ended) {
    Outcome outcome = Outcome::failed(slot.refused_by_proxy().value_or(transport_error(slot, code)));
    outcome.is_throttled = outcome.status.reason() == Reason::kFetchFdLimit;
    return outcome;
  }
  if (answer.is_continuation() && (status == 412 || status == 416) && slot.job->request.if_match.empty()) {
    Outcome outcome = Outcome::failed(Reason::kFetchShortBody, "the object changed while it was read: starting over");
    outcome.try_again_now = true;
    return outcome;
  }
  const bool was_asked_after = slot.job->kept && !slot.job->kept->etag.empty() && !answer.is_continuation();
  if (status == 304 && was_asked_after) {  // else nobody said If-None-Match
    slot.job->is_unchanged = true;
    return {};
  }
  // A part that begins behind the end of a packed object may lie inside the unpacked one.
  if (status == 416 && *settings_.has_packed && !slot.job->reads_whole && !slot.job->request.as_stored) {
    Outcome outcome =
        Outcome::failed(Reason::kFetchServer, "no such part, unless the store packs it: reading the whole");
    outcome.try_again_now = slot.job->reads_whole = true;
    return outcome;
  }
  if (!answer.is_success() && status != 416)
    return slot.dialect->explain(*slot.job, slot.wire, answer.head(), answer.error_body());
  Result<FetchedObject> object = answer.finish();
  if (!object.ok()) {
    Outcome outcome = Outcome::failed(unless_proven(slot, std::move(object).status()));
    outcome.try_again_now = answer.needs_whole();
    if (answer.needs_whole()) *settings_.has_packed = slot.job->reads_whole = true;
    return outcome;
  }
  Outcome outcome;
  outcome.object = std::move(object).value();
  return outcome;
}

// The same bytes again and again were not damaged on their way: then the store's checksum, or the object, is wrong.
Status HttpLoop::Impl::unless_proven(Slot& slot, Status why) {
  Job::WrongChecksum& wrong = slot.job->wrong_checksum;
  if (why.reason() != Reason::kFetchChecksum) {
    wrong = {};
    return why;
  }
  const std::string computed = slot.answer.computed_checksum();
  wrong.n_times = wrong.computed == computed ? wrong.n_times + 1 : 1;
  wrong.computed = computed;
  if (wrong.n_times < kSameForProof) return why;
  return {Reason::kMediaChecksum, fmt::format("{}, {} times in a row", why.message(), wrong.n_times)};
}

Status HttpLoop::Impl::transport_error(const Slot& slot, CURLcode code) const {
  const char* text = slot.error_text[0] ? slot.error_text.data() : curl_easy_strerror(code);
  const bool is_in_body = slot.answer.is_success() && slot.answer.n_received() > 0;
  switch (code) {
    case CURLE_PARTIAL_FILE:
      return {Reason::kFetchShortBody, "the body ended early: " + slot.answer.progress()};
    case CURLE_RECV_ERROR:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
      if (is_in_body)
        return {Reason::kFetchShortBody, fmt::format("the connection broke ({}): {}", text, slot.answer.progress())};
      return {Reason::kFetchConnect, text};
    case CURLE_OPERATION_TIMEDOUT:
      return {Reason::kFetchTimeout, fmt::format("no connection within {} s",
                                                 std::chrono::duration<double>(settings_.timeouts.connect).count())};
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_ISSUER_ERROR:
    case CURLE_SSL_CERTPROBLEM:
      return {Reason::kFetchTls,
              fmt::format("{} (CA file: {})", text, settings_.ca_file.empty() ? "the system's" : settings_.ca_file)};
    case CURLE_TOO_MANY_REDIRECTS:
      return {Reason::kFetchRedirect, fmt::format("more than {} redirects", kMaxRedirects)};
    case CURLE_URL_MALFORMAT:
      return {Reason::kMediaScheme, "no URL that can be fetched"};
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_WEIRD_SERVER_REPLY:
    case CURLE_BAD_CONTENT_ENCODING:
      return {Reason::kFetchServer, fmt::format("no proper HTTP answer ({})", text)};
    case CURLE_OUT_OF_MEMORY:
      return {Reason::kBudget, "no memory for a connection"};
    default:
      break;
  }
  if (slot.lacks_descriptors())
    return {Reason::kFetchFdLimit,
            "too many open files for another connection; raise ulimit -n or lower fetch_concurrency"};
  return {Reason::kFetchConnect, text};
}

std::size_t HttpLoop::Impl::on_header(char* data, std::size_t size, std::size_t n, void* user) {
  auto& slot = *static_cast<Slot*>(user);
  slot.last_progress = slot.loop.now_;
  if (!slot.first_byte) slot.first_byte = slot.last_progress - slot.started;
  slot.answer.on_header({data, size * n});
  return size * n;
}

std::size_t HttpLoop::Impl::on_body(char* data, std::size_t size, std::size_t n, void* user) {
  auto& slot = *static_cast<Slot*>(user);
  slot.last_progress = slot.loop.now_;
  return slot.answer.on_body({data, size * n}) ? size * n : 0;
}

HttpLoop::HttpLoop(JobOwner& owner, Dialect& s3, Dialect& plain, HttpSettings settings, AddressBook& book,
                   const Clock& clock)
    : impl_(std::make_unique<Impl>(owner, s3, plain, std::move(settings), book, clock)) {}
HttpLoop::~HttpLoop() = default;
Status HttpLoop::start(int worker) { return impl_->start(worker); }
void HttpLoop::wake() { impl_->wake(); }
void HttpLoop::stop() { impl_->stop(); }

}  // namespace stoker

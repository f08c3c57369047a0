// GETs of many objects of one size: our fetcher, or a bare loop around libcurl's multi interface to hold it against.
//
//   fetch_bench CONTENDER IN_FLIGHT ENDPOINT N_OBJECTS OBJECT_BYTES [CA_FILE]
//
// CONTENDER is `curl` (the bare loop, unsigned), `curl_s3` (the same with the headers of a signed request, made once),
// `http` (ours, unsigned) or `s3` (ours, every request signed). IN_FLIGHT is how many at one time, or FIRST-MOST for a
// number that our fetcher chooses. The objects lie below ENDPOINT/bench/, `object_name` says how they are called; each
// begins with its number, eight bytes in the machine's order. A line of standard input is a number of GETs to do; the
// answer is one JSON object a line: that number, nanoseconds of wall time, nanoseconds of CPU time of the whole
// process, and how many were in flight in the end. Connections are kept from one line to the next. Ends when the input
// does; a wrong byte ends it with a message and status 1.

#include <curl/curl.h>
#include <fmt/format.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "source/source.h"

namespace {

struct Task {
  std::string contender;
  std::size_t n_in_flight = 0;
  std::size_t n_at_most = 0;
  std::string endpoint;
  std::uint64_t n_objects = 0;
  std::size_t object_bytes = 0;
  std::string ca_file;
};

[[noreturn]] void fail(const std::string& message) {
  fmt::print(stderr, "fetch_bench: {}\n", message);
  std::_Exit(1);
}

/// The n-th request's object: neighbours in time are none in storage. The stride has no factor in common with a power
/// of two.
std::uint64_t object_of(std::uint64_t n, const Task& task) { return n * 1237 % task.n_objects; }
std::string object_name(std::uint64_t object) { return fmt::format("train/{:06}.jpg", object); }

void check(const void* data, std::size_t n_bytes, std::uint64_t object, const Task& task) {
  std::uint64_t found = 0;
  if (n_bytes == task.object_bytes) std::memcpy(&found, data, sizeof found);
  if (n_bytes != task.object_bytes || found != object)
    fail(fmt::format("{}: {} bytes that begin with {}", object_name(object), n_bytes, found));
}

/// The least that a program around libcurl can do: epoll, one handle and one receive buffer for each transfer in
/// flight, both used again, connections kept; epoll is told of a change of interest only when it matters.
class BareLoop {
 public:
  explicit BareLoop(const Task& task) : task_(task), transfers_(task.n_in_flight) {
    curl_global_init(CURL_GLOBAL_DEFAULT);
    multi_ = curl_multi_init();
    epoll_ = epoll_create1(EPOLL_CLOEXEC);
    curl_multi_setopt(multi_, CURLMOPT_SOCKETFUNCTION, &BareLoop::on_socket);
    curl_multi_setopt(multi_, CURLMOPT_SOCKETDATA, this);
    curl_multi_setopt(multi_, CURLMOPT_TIMERFUNCTION, &BareLoop::on_timer);
    curl_multi_setopt(multi_, CURLMOPT_TIMERDATA, this);
    curl_multi_setopt(multi_, CURLMOPT_MAXCONNECTS, 16'384L);
    for (Transfer& transfer : transfers_) {
      transfer.buffer = std::make_unique<char[]>(task.object_bytes);
      transfer.loop = this;
      CURL* easy = transfer.easy = curl_easy_init();
      curl_easy_setopt(easy, CURLOPT_PRIVATE, &transfer);
      curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, &BareLoop::on_body);
      curl_easy_setopt(easy, CURLOPT_WRITEDATA, &transfer);
      curl_easy_setopt(easy, CURLOPT_CLOSESOCKETFUNCTION, &BareLoop::close_socket);
      curl_easy_setopt(easy, CURLOPT_CLOSESOCKETDATA, this);
      curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
      curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
      curl_easy_setopt(easy, CURLOPT_BUFFERSIZE, kReceiveBytes);
      if (task.contender == "curl_s3") curl_easy_setopt(easy, CURLOPT_HTTPHEADER, headers_of_a_signed_request());
      if (!task.ca_file.empty()) curl_easy_setopt(easy, CURLOPT_CAINFO, task.ca_file.c_str());
    }
  }
  BareLoop(const BareLoop&) = delete;
  BareLoop& operator=(const BareLoop&) = delete;

  std::size_t n_in_flight() const { return task_.n_in_flight; }

  void run(std::uint64_t n_gets) {
    n_left_ = n_gets;
    for (Transfer& transfer : transfers_) {
      if (n_left_ > 0) begin(transfer);
    }
    int n_running = 1;
    while (n_open_ > 0) {
      std::array<epoll_event, 256> events;
      const int n = epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), timeout_ms_);
      if (n == 0 || timeout_ms_ == 0) {
        timeout_ms_ = -1;
        curl_multi_socket_action(multi_, CURL_SOCKET_TIMEOUT, 0, &n_running);
      }
      for (int i = 0; i < n; ++i) {
        const epoll_event& event = events[static_cast<std::size_t>(i)];
        int what = 0;
        if (event.events & (EPOLLIN | EPOLLHUP | EPOLLERR)) what |= CURL_CSELECT_IN;
        if (event.events & EPOLLOUT) what |= CURL_CSELECT_OUT;
        curl_multi_socket_action(multi_, event.data.fd, what, &n_running);
      }
      end_finished();
    }
  }

 private:
  // The fastest of 16, 32, 64, 128, 256 and 512 KiB.
  static constexpr long kReceiveBytes = 64 * 1024;

  struct Transfer {
    BareLoop* loop = nullptr;
    CURL* easy = nullptr;
    std::unique_ptr<char[]> buffer;
    std::size_t n_filled = 0;
    std::uint64_t object = 0;
  };

  // As long as ours; nobody here checks the signature.
  static curl_slist* headers_of_a_signed_request() {
    const std::string hash(64, 'a');
    curl_slist* headers = nullptr;
    for (const std::string& line :
         {std::string("x-amz-checksum-mode: ENABLED"), "x-amz-content-sha256: " + hash,
          std::string("x-amz-date: 20261130T120000Z"),
          "authorization: AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20261130/us-east-1/s3/aws4_request, "
          "SignedHeaders=host;x-amz-checksum-mode;x-amz-content-sha256;x-amz-date, Signature=" +
              hash})
      headers = curl_slist_append(headers, line.c_str());
    return headers;
  }

  void begin(Transfer& transfer) {
    --n_left_;
    ++n_open_;
    transfer.object = object_of(n_started_++, task_);
    transfer.n_filled = 0;
    const std::string url = fmt::format("{}/bench/{}", task_.endpoint, object_name(transfer.object));
    curl_easy_setopt(transfer.easy, CURLOPT_URL, url.c_str());
    curl_multi_add_handle(multi_, transfer.easy);
  }

  void end_finished() {
    int n_waiting = 0;
    while (const CURLMsg* message = curl_multi_info_read(multi_, &n_waiting)) {
      if (message->data.result != CURLE_OK) fail(curl_easy_strerror(message->data.result));
      void* user = nullptr;
      curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &user);
      auto& transfer = *static_cast<Transfer*>(user);
      curl_multi_remove_handle(multi_, transfer.easy);
      check(transfer.buffer.get(), transfer.n_filled, transfer.object, task_);
      --n_open_;
      if (n_left_ > 0) begin(transfer);
    }
  }

  static std::size_t on_body(char* data, std::size_t, std::size_t n, void* user) {
    auto& transfer = *static_cast<Transfer*>(user);
    if (transfer.n_filled + n > transfer.loop->task_.object_bytes) return 0;
    std::memcpy(transfer.buffer.get() + transfer.n_filled, data, n);
    transfer.n_filled += n;
    return n;
  }

  static int on_socket(CURL*, curl_socket_t fd, int what, void* user, void*) {
    auto& loop = *static_cast<BareLoop*>(user);
    std::uint32_t wanted = 0;
    if (what == CURL_POLL_IN || what == CURL_POLL_INOUT) wanted |= EPOLLIN;
    if (what == CURL_POLL_OUT || what == CURL_POLL_INOUT) wanted |= EPOLLOUT;
    if (loop.told_.size() <= static_cast<std::size_t>(fd)) loop.told_.resize(static_cast<std::size_t>(fd) + 64);
    std::uint32_t& told = loop.told_[static_cast<std::size_t>(fd)];
    if (wanted == 0 || wanted == told) return 0;  // the next request on this connection wants the same again
    epoll_event event{};
    event.events = wanted;
    event.data.fd = fd;
    epoll_ctl(loop.epoll_, told == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, fd, &event);
    told = wanted;
    return 0;
  }
  static int close_socket(void* user, curl_socket_t fd) {
    auto& told = static_cast<BareLoop*>(user)->told_;
    if (static_cast<std::size_t>(fd) < told.size()) told[static_cast<std::size_t>(fd)] = 0;
    return close(fd);
  }
  static int on_timer(CURLM*, long timeout_ms, void* user) {
    static_cast<BareLoop*>(user)->timeout_ms_ = static_cast<int>(timeout_ms);
    return 0;
  }

  const Task& task_;
  CURLM* multi_ = nullptr;  // until the process ends, as are the handles
  int epoll_ = -1;
  int timeout_ms_ = -1;
  std::vector<Transfer> transfers_;
  std::vector<std::uint32_t> told_;  // what epoll watches for, by descriptor
  std::uint64_t n_started_ = 0, n_left_ = 0, n_open_ = 0;
};

/// Our fetcher. As many requests wait as may be in flight, as in a pipeline that looks ahead; each answer submits the
/// next and lets its buffer go.
class Ours {
 public:
  explicit Ours(const Task& task) : task_(task) {
    stoker::FetchSettings settings;
    settings.concurrency = static_cast<int>(task.n_in_flight);
    settings.max_concurrency = static_cast<int>(task.n_at_most);
    settings.storage.endpoint = task.endpoint;
    settings.storage.region = "us-east-1";
    settings.storage.access_key_id = "AKIAIOSFODNN7EXAMPLE";
    settings.storage.secret_access_key = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
    settings.storage.ca_file = task.ca_file;
    settings.storage.environment = [](const char*) { return std::nullopt; };
    prefix_ = task.contender == "s3" ? "s3://bench/" : task.endpoint + "/bench/";
    auto made = stoker::Fetcher::create(std::move(settings));
    if (!made.ok()) fail(made.status().to_string());
    fetcher_ = std::move(made).value();
  }

  std::size_t n_in_flight() const { return static_cast<std::size_t>(fetcher_->stats().limit); }

  void run(std::uint64_t n_gets) {
    {
      const std::lock_guard lock(mu_);
      n_left_ = n_gets;
      n_open_ = 0;
    }
    for (std::size_t i = 0; i < 2 * task_.n_at_most; ++i) submit_one();
    std::unique_lock lock(mu_);
    done_.wait(lock, [&] { return n_left_ == 0 && n_open_ == 0; });
  }

 private:
  void submit_one() {
    std::uint64_t object = 0;
    {
      const std::lock_guard lock(mu_);
      if (n_left_ == 0) return;
      --n_left_;
      ++n_open_;
      object = object_of(n_started_++, task_);
    }
    stoker::FetchRequest request;
    request.url = prefix_ + object_name(object);
    fetcher_->submit(std::move(request), [this, object](stoker::Result<stoker::FetchedObject> result) {
      if (!result.ok()) fail(result.status().to_string());
      check(result->bytes.data(), result->bytes.size(), object, task_);
      submit_one();
      const std::lock_guard lock(mu_);
      if (--n_open_ == 0 && n_left_ == 0) done_.notify_all();
    });
  }

  const Task& task_;
  std::string prefix_;
  std::mutex mu_;
  std::condition_variable done_;
  std::uint64_t n_started_ = 0, n_left_ = 0, n_open_ = 0;  // under mu_
  std::unique_ptr<stoker::Fetcher> fetcher_;               // last: ends first
};

std::int64_t cpu_ns() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

template <typename Contender>
int serve(const Task& task) {
  Contender contender(task);
  unsigned long long n_gets = 0;
  while (std::scanf("%llu", &n_gets) == 1) {
    const std::int64_t cpu = cpu_ns();
    const auto begin = std::chrono::steady_clock::now();
    contender.run(n_gets);
    const auto wall = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - begin);
    fmt::print("{{\"gets\": {}, \"wall_ns\": {}, \"cpu_ns\": {}, \"in_flight\": {}}}\n", n_gets, wall.count(),
               cpu_ns() - cpu, contender.n_in_flight());
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() < 5) fail("CONTENDER IN_FLIGHT ENDPOINT N_OBJECTS OBJECT_BYTES [CA_FILE]");
  const std::size_t dash = words[1].find('-');
  const Task task{words[0],
                  std::strtoull(words[1].c_str(), nullptr, 10),
                  std::strtoull(words[1].c_str() + (dash == std::string::npos ? 0 : dash + 1), nullptr, 10),
                  words[2],
                  std::strtoull(words[3].c_str(), nullptr, 10),
                  std::strtoull(words[4].c_str(), nullptr, 10),
                  words.size() > 5 ? words[5] : ""};
  if (task.contender == "curl" || task.contender == "curl_s3") return serve<BareLoop>(task);
  if (task.contender == "http" || task.contender == "s3") return serve<Ours>(task);
  fail("no contender " + task.contender);
}

#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"

namespace stoker::testing {

struct ServerRequest {
  std::string method;
  std::string target;                          ///< as it came over the wire: path and query, encoded
  std::map<std::string, std::string> headers;  ///< names in lower case
  int number = 0;                              ///< how many requests came before
};

/// An answer, and the ways in which a server can misbehave.
struct ServerReply {
  int status = 200;
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;
  /// What Content-Length says; absent: the truth. kNoLength: no such header.
  std::optional<std::uint64_t> announced;
  static constexpr std::uint64_t kNoLength = UINT64_MAX;
  std::size_t n_send = SIZE_MAX;  ///< of the body
  enum class Then { kKeep, kClose, kReset, kStall };
  Then then = Then::kKeep;     ///< after n_send bytes of the body; kStall keeps the connection open and silent
  bool stalls_first = false;   ///< not even a status line
  std::string raw;             ///< sent instead of everything else
  std::size_t drip_bytes = 0;  ///< so many at a time, `drip_pause` apart; 0: as fast as they go
  std::chrono::milliseconds drip_pause{1};
};

/// Where a server listens; port 0: a free one.
struct ServerPlace {
  const char* address = "127.0.0.1";
  int port = 0;
};

/// A web server inside the test's process, on a loopback port of its own: one thread, any number of connections, and it
/// can stall, cut, throttle, lie and redirect. Handlers run on that thread.
class LoopbackServer {
 public:
  using Handler = std::function<ServerReply(const ServerRequest&)>;
  explicit LoopbackServer(Handler handler, ServerPlace place = {});
  ~LoopbackServer();
  LoopbackServer(const LoopbackServer&) = delete;
  LoopbackServer& operator=(const LoopbackServer&) = delete;

  int port() const { return port_; }
  std::string endpoint() const { return "http://" + address_ + ":" + std::to_string(port_); }

  /// While held, requests arrive and are remembered, but not answered. Letting go answers what waits.
  void hold(bool on);
  /// Waits until so many requests have arrived in all; false after 10 s.
  bool wait_for_requests(int n) STOKER_EXCLUDES(mu_);
  std::vector<std::string> targets() const STOKER_EXCLUDES(mu_);
  int n_requests() const STOKER_EXCLUDES(mu_);
  /// The most requests that were open (arrived, not answered) at one time.
  int n_open_peak() const STOKER_EXCLUDES(mu_);
  int n_connections_made() const { return n_connections_.load(); }

 private:
  struct Connection;
  void run();
  void accept_all();
  void read_some(Connection& connection);
  void write_some(Connection& connection);
  void take_requests(Connection& connection);
  void answer(Connection& connection, const ServerRequest& request);
  void close_connection(int fd, bool with_reset);

  int wait_ms() const;
  void drip_on();

  const Handler handler_;
  const std::string address_;
  int listen_ = -1;
  int epoll_ = -1;
  int event_ = -1;
  int port_ = 0;
  std::map<int, std::unique_ptr<Connection>> connections_;          // the thread's own
  std::map<int, std::chrono::steady_clock::time_point> next_drip_;  // likewise

  std::atomic<bool> is_stopping_{false};
  std::atomic<bool> is_held_{false};
  std::atomic<int> n_connections_{0};
  mutable Mutex mu_;
  std::condition_variable_any arrived_;
  std::vector<std::string> targets_ STOKER_GUARDED_BY(mu_);
  int n_open_ STOKER_GUARDED_BY(mu_) = 0;
  int n_open_peak_ STOKER_GUARDED_BY(mu_) = 0;
  std::thread thread_;
};

}  // namespace stoker::testing

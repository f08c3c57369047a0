#include "exchange/tcp_store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <optional>
#include <utility>

#include "base/hash.h"
#include "base/log.h"
#include "base/mutex.h"
#include "exchange/exchange.h"
#include "exchange/wire.h"
#include "exec/owned_fd.h"

namespace stoker {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

Status lost(std::string what) { return {Reason::kFetchConnect, std::move(what)}; }

/// One connection, after the greeting. Every wait looks at the stop ten times a second.
class Connection {
 public:
  /// @return FETCH_CONNECT for whatever is not the job's service.
  static Result<Connection> open(const addrinfo& at, std::uint16_t port, const std::string& secret, milliseconds limit,
                                 const std::stop_token& stop) {
    sockaddr_storage address{};
    std::memcpy(&address, at.ai_addr, at.ai_addrlen);
    if (at.ai_family == AF_INET) reinterpret_cast<sockaddr_in*>(&address)->sin_port = htons(port);
    if (at.ai_family == AF_INET6) reinterpret_cast<sockaddr_in6*>(&address)->sin6_port = htons(port);
    Connection made(OwnedFd(::socket(at.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)));
    if (!made.fd_.is_open()) return lost(std::strerror(errno));
    const int on = 1;
    ::setsockopt(made.fd_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    const auto until = Clock::now() + limit;
    if (::connect(made.fd_.get(), reinterpret_cast<const sockaddr*>(&address), at.ai_addrlen) != 0) {
      if (errno != EINPROGRESS) return lost(std::strerror(errno));
      STOKER_CHECKED(made.ready(POLLOUT, until, stop));
      int error = 0;
      socklen_t n = sizeof error;
      ::getsockopt(made.fd_.get(), SOL_SOCKET, SO_ERROR, &error, &n);
      if (error != 0) return lost(std::strerror(error));
    }
    STOKER_CHECKED(made.greet(secret, until, stop));
    return made;
  }

  Result<std::string> ask(const std::string& message, milliseconds limit, const std::stop_token& stop) {
    const auto until = Clock::now() + limit;
    STOKER_CHECKED(send(message, until, stop));
    return receive(wire::kMostMessageBytes, until, stop);
  }

 private:
  explicit Connection(OwnedFd fd) : fd_(std::move(fd)) {}

  Status greet(const std::string& secret, Clock::time_point until, const std::stop_token& stop) {
    const std::string nonce = random_bytes(wire::kNonceBytes);
    STOKER_CHECKED(send(std::string(wire::kMagic) + nonce, until, stop));
    STOKER_TRY(const std::string answer, receive(wire::kMostGreetingBytes, until, stop));
    if (answer.size() != wire::kNonceBytes + wire::kProofBytes) return lost("something else listens there");
    const std::string theirs = answer.substr(0, wire::kNonceBytes);
    if (!wire::is_same_proof(answer.substr(wire::kNonceBytes), wire::proof_of(secret, "server", nonce, theirs))) {
      return lost("another job listens there");
    }
    STOKER_CHECKED(send(wire::proof_of(secret, "client", nonce, theirs), until, stop));
    auto welcome = receive(wire::kMostGreetingBytes, until, stop);
    return welcome.ok() ? Status() : std::move(welcome).status();
  }

  Status ready(short events, Clock::time_point until, const std::stop_token& stop) const {
    for (;;) {
      if (stop.stop_requested()) return Status(Reason::kStopped, "stopped while asking the exchange");
      const auto left = std::chrono::duration_cast<milliseconds>(until - Clock::now());
      if (left <= milliseconds(0)) return lost("no answer came");
      pollfd polled{fd_.get(), events, 0};
      const int n = ::poll(&polled, 1, static_cast<int>(std::min(left, milliseconds(100)).count()));
      if (n > 0) return {};
      if (n < 0 && errno != EINTR) return lost(std::strerror(errno));
    }
  }

  Status send(const std::string& message, Clock::time_point until, const std::stop_token& stop) const {
    const std::string bytes = wire::framed(message);
    for (std::size_t done = 0; done < bytes.size();) {
      const ssize_t n = ::send(fd_.get(), bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL);
      if (n > 0) {
        done += static_cast<std::size_t>(n);
      } else if (n < 0 && errno == EAGAIN) {
        STOKER_CHECKED(ready(POLLOUT, until, stop));
      } else if (n == 0 || errno != EINTR) {
        return lost(std::strerror(errno));
      }
    }
    return {};
  }

  Result<std::string> receive(std::size_t most_bytes, Clock::time_point until, const std::stop_token& stop) {
    std::array<char, 1 << 16> part;
    for (;;) {
      if (auto message = in_.next()) return std::move(*message);
      STOKER_CHECKED(ready(POLLIN, until, stop));
      const ssize_t n = ::recv(fd_.get(), part.data(), part.size(), 0);
      if (n == 0) return lost("it hung up");
      if (n < 0 && errno != EAGAIN && errno != EINTR) return lost(std::strerror(errno));
      if (n > 0 && !in_.add({part.data(), static_cast<std::size_t>(n)}, most_bytes).ok()) {
        return lost("something else listens there");
      }
    }
  }

  OwnedFd fd_;
  wire::Unframer in_;
};

class TcpStore final : public ValueStore {
 public:
  explicit TcpStore(TcpStoreOptions options) : options_(std::move(options)) {}

  Result<std::optional<std::string>> get(const StoreKey& key, milliseconds wait, std::stop_token stop) override {
    const auto wait_ms = static_cast<std::uint32_t>(std::clamp<std::int64_t>(wait.count(), 0, 10'000));
    STOKER_TRY(std::string there, ask({.kind = wire::Request::Kind::kGet, .key = key, .wait_ms = wait_ms}, stop));
    return there.empty() ? std::optional<std::string>() : std::optional(std::move(there));
  }

  Result<std::string> compare_set(const StoreKey& key, const std::string& expected, const std::string& desired,
                                  std::stop_token stop) override {
    return ask({.kind = wire::Request::Kind::kCompareSet, .key = key, .expected = expected, .desired = desired}, stop);
  }

  Status drop_before(const std::string& space, std::uint64_t window, std::stop_token stop) override {
    auto done = ask({.kind = wire::Request::Kind::kDropBefore, .key = {space, window, "all"}}, stop);
    return done.ok() ? Status() : std::move(done).status();
  }

  std::string describe() const override {
    return options_.ports.size() == 1 ? fmt::format("rank 0's service at {}:{}", options_.host, options_.ports.front())
                                      : fmt::format("rank 0's service at {}, one of the ports {}", options_.host,
                                                    fmt::join(options_.ports, ", "));
  }

 private:
  // A request may wait for a value for ten seconds at most; what takes much longer is a server that is gone.
  static constexpr milliseconds kAnswerLimit{30'000};
  static constexpr milliseconds kTellAfter{5000};
  static constexpr milliseconds kGreetingLimit{5000};

  Result<std::string> ask(const wire::Request& request, const std::stop_token& stop) STOKER_EXCLUDES(mu_) {
    if (!request.key.is_valid()) return Status(Reason::kInternal, "a key that the exchange does not know");
    const std::string message = wire::encode(request);
    MutexLock lock(mu_);
    while (is_busy_) {
      if (!idle_.wait(lock, stop, [this]() STOKER_NO_ANALYSIS { return !is_busy_; })) {
        return Status(Reason::kStopped, "stopped while asking the exchange");
      }
    }
    is_busy_ = true;
    lock.unlock();
    Result<std::string> answer = ask_alone(message, stop);
    lock.lock();
    is_busy_ = false;
    idle_.notify_one();
    return answer;
  }

  /// All requests may be sent twice: the second time they find what the first one did.
  Result<std::string> ask_alone(const std::string& message, const std::stop_token& stop) {
    const auto began = Clock::now();
    const milliseconds limit = is_lost_ ? milliseconds(0) : has_met_ ? options_.lost_limit : options_.meet_limit;
    bool is_told = false;
    for (milliseconds pause(20);; pause = std::min(pause * 2, milliseconds(1000))) {
      Status why = connect(stop);
      if (why.ok()) {
        auto answer = connection_->ask(message, kAnswerLimit, stop);
        if (answer.ok()) {
          is_lost_ = false;
          return answer;
        }
        connection_.reset();
        why = std::move(answer).status();
      }
      if (why.code() == Code::kCancelled || why.reason() == Reason::kSettings) return why;
      const auto passed = std::chrono::duration_cast<milliseconds>(Clock::now() - began);
      if (passed >= limit) return gone(why, passed);
      if (passed >= kTellAfter && !is_told) {
        is_told = true;
        log(LogLevel::kWarning, fmt::format("waiting for {}: {}", describe(), why.message()));
      }
      MutexLock lock(mu_);
      never_.wait_for(lock, stop, std::min(pause, limit - passed), [] { return false; });
      if (stop.stop_requested()) return Status(Reason::kStopped, "stopped while looking for the exchange");
    }
  }

  Status gone(const Status& why, milliseconds passed) {
    is_lost_ = has_met_;
    if (has_met_) return lost(fmt::format("{}: {}", describe(), why.message()));
    return Status(Reason::kSettings,
                  fmt::format("{} was not found in {} s: {}. Rank 0 runs it while its loader is open: is MASTER_ADDR "
                              "its host, may ranks connect to it, and is STOKER_EXCHANGE_SECRET the same everywhere? "
                              "`exchange_port` names a port that a firewall lets through; `exchange: dir` shares by "
                              "a folder",
                              describe(), passed.count() / 1000, why.message()));
  }

  Status connect(const std::stop_token& stop) {
    if (connection_) return {};
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (const int error = ::getaddrinfo(options_.host.c_str(), nullptr, &hints, &found); error != 0) {
      return lost(fmt::format("{}: {}", options_.host, ::gai_strerror(error)));
    }
    const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owned(found, ::freeaddrinfo);
    Status why = lost("it has no address");
    // Once met it keeps its port: a rank 0 that begins anew has other ranks.
    const std::vector<std::uint16_t> ports = has_met_ ? std::vector{met_port_} : options_.ports;
    const milliseconds limit = has_met_ ? options_.lost_limit : kGreetingLimit;
    for (const std::uint16_t port : ports) {
      for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
        auto made = Connection::open(*at, port, options_.secret, limit, stop);
        if (made.ok()) {
          connection_.emplace(std::move(*made));
          has_met_ = true;
          met_port_ = port;
          return {};
        }
        if (made.status().code() == Code::kCancelled) return std::move(made).status();
        why = std::move(made).status();
      }
    }
    return why;
  }

  const TcpStoreOptions options_;

  Mutex mu_;
  std::condition_variable_any idle_, never_;
  bool is_busy_ STOKER_GUARDED_BY(mu_) = false;

  std::optional<Connection> connection_;  // from here on: of whoever made is_busy_ true
  bool has_met_ = false;
  std::uint16_t met_port_ = 0;
  bool is_lost_ = false;  // one try each, until it is back
};

}  // namespace

std::unique_ptr<ValueStore> make_tcp_store(TcpStoreOptions options) {
  return std::make_unique<TcpStore>(std::move(options));
}

std::vector<std::uint16_t> ports_of_job(const std::string& job) {
  constexpr std::uint64_t kFirst = 20000, kCount = 12000;  // below what Linux gives to outgoing connections
  constexpr std::size_t kPorts = 16;
  const std::uint64_t hash = std::stoull(sha256_hex("ports " + job).substr(0, 15), nullptr, 16);
  std::vector<std::uint16_t> ports;
  for (std::uint64_t i = 0; i < kPorts; ++i) {
    ports.push_back(static_cast<std::uint16_t>(kFirst + (hash + i * 739) % kCount));
  }
  return ports;
}

}  // namespace stoker

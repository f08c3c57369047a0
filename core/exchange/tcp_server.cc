#include "exchange/tcp_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <utility>

#include "exchange/exchange.h"
#include "exchange/value_table.h"
#include "exchange/wire.h"
#include "exec/cpu.h"
#include "exec/owned_fd.h"

namespace stoker {
namespace {

using Time = std::chrono::steady_clock::time_point;

/// One peer. A request is answered before the next one is looked at, so at most one value per peer is on its way out.
struct Peer {
  enum class Stage { kGreeting, kProof, kServed };

  OwnedFd fd;
  Stage stage = Stage::kGreeting;
  Time since;
  std::string client_nonce, server_nonce;
  wire::Unframer in;
  std::string out;
  std::size_t n_sent = 0;
  std::optional<StoreKey> waits_for;
  Time waits_until;
  bool is_lost = false;

  bool is_busy() const { return n_sent < out.size() || waits_for.has_value(); }
  void answer(std::string_view message) {
    out = wire::framed(message);
    n_sent = 0;
    waits_for.reset();
  }
};

}  // namespace

class TcpServer::Loop {
 public:
  Loop(TcpServerOptions options, OwnedFd listening, OwnedFd wake)
      : options_(std::move(options)),
        listening_(std::move(listening)),
        wake_(std::move(wake)),
        values_(options_.max_bytes) {}

  void run(const std::stop_token& stop) {
    become_background_thread("stoker-exchange");
    while (!stop.stop_requested()) {
      poll_all();
      if ((polled_[0].revents & POLLIN) != 0) drain_wake();
      const Time now = std::chrono::steady_clock::now();
      for (std::size_t i = 0; i < peers_.size(); ++i) {
        if (polled_[i + 2].revents != 0) move(*peers_[i], polled_[i + 2].revents);
        if (is_overdue(*peers_[i], now)) peers_[i]->is_lost = true;
        if (peers_[i]->waits_for && now >= peers_[i]->waits_until) peers_[i]->answer("");
      }
      std::erase_if(peers_, [](const std::unique_ptr<Peer>& peer) { return peer->is_lost; });
      if ((polled_[1].revents & POLLIN) != 0) accept_all();
    }
  }
  std::size_t n_values() const { return n_values_; }

  void wake() const {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = ::write(wake_.get(), &one, sizeof one);
  }

 private:
  bool is_overdue(const Peer& peer, Time now) const {
    return peer.stage != Peer::Stage::kServed && now - peer.since > options_.greeting_limit;
  }

  void poll_all() {
    const auto accepts = static_cast<short>(is_out_of_descriptors_ ? 0 : POLLIN);
    polled_.assign({{wake_.get(), POLLIN, 0}, {listening_.get(), accepts, 0}});
    bool is_any_timed = std::exchange(is_out_of_descriptors_, false);
    for (const auto& peer : peers_) {
      // Who waits for a value may still hang up, which POLLIN shows; what it sends meanwhile stays in the kernel.
      short events = peer->n_sent < peer->out.size() ? POLLOUT : POLLIN;
      if (peer->waits_for) events = POLLRDHUP;
      polled_.push_back({peer->fd.get(), events, 0});
      is_any_timed = is_any_timed || peer->waits_for || peer->stage != Peer::Stage::kServed;
    }
    constexpr int kTick_ms = 50;
    ::poll(polled_.data(), polled_.size(), is_any_timed ? kTick_ms : -1);
  }

  void drain_wake() const {
    std::uint64_t n = 0;
    [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &n, sizeof n);
  }

  void accept_all() {
    for (;;) {
      OwnedFd fd(::accept4(listening_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!fd.is_open()) {
        // None left; or out of descriptors: they wait in the kernel, and are not looked at until the next tick.
        is_out_of_descriptors_ = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
        return;
      }
      if (peers_.size() >= options_.max_connections) continue;
      const int on = 1;  // small messages leave at once
      ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      ::setsockopt(fd.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);  // of nodes that vanish
      auto peer = std::make_unique<Peer>();
      peer->fd = std::move(fd);
      peer->since = std::chrono::steady_clock::now();
      peers_.push_back(std::move(peer));
    }
  }

  void move(Peer& peer, short events) {
    if ((events & (POLLERR | POLLHUP | POLLNVAL)) != 0 || (events & POLLRDHUP) != 0) {
      peer.is_lost = true;
      return;
    }
    if ((events & POLLOUT) != 0) send(peer);
    if ((events & POLLIN) != 0) receive(peer);
    serve(peer);
  }

  void receive(Peer& peer) {
    std::array<char, 1 << 16> part;
    const ssize_t n = ::recv(peer.fd.get(), part.data(), part.size(), 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    const std::size_t most = peer.stage == Peer::Stage::kServed ? wire::kMostMessageBytes : wire::kMostGreetingBytes;
    peer.is_lost = n <= 0 || !peer.in.add({part.data(), static_cast<std::size_t>(n)}, most).ok();
  }

  void send(Peer& peer) {
    while (peer.n_sent < peer.out.size()) {
      const ssize_t n =
          ::send(peer.fd.get(), peer.out.data() + peer.n_sent, peer.out.size() - peer.n_sent, MSG_NOSIGNAL);
      if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
      if (n <= 0) {
        peer.is_lost = true;
        return;
      }
      peer.n_sent += static_cast<std::size_t>(n);
    }
    peer.out = {};
    peer.n_sent = 0;
  }

  /// Takes what has come whole, as long as nothing is on its way out.
  void serve(Peer& peer) {
    while (!peer.is_lost && !peer.is_busy()) {
      const std::optional<std::string> message = peer.in.next();
      if (!message) return;
      peer.is_lost = !(peer.stage == Peer::Stage::kServed ? answer(peer, *message) : greet(peer, *message));
      if (!peer.is_lost) send(peer);
    }
  }

  bool greet(Peer& peer, const std::string& message) {
    if (peer.stage == Peer::Stage::kGreeting) {
      if (message.size() != wire::kMagic.size() + wire::kNonceBytes || !message.starts_with(wire::kMagic)) return false;
      peer.client_nonce = message.substr(wire::kMagic.size());
      peer.server_nonce = random_bytes(wire::kNonceBytes);
      peer.stage = Peer::Stage::kProof;
      peer.answer(peer.server_nonce + wire::proof_of(options_.secret, "server", peer.client_nonce, peer.server_nonce));
      return true;
    }
    if (!wire::is_same_proof(message,
                             wire::proof_of(options_.secret, "client", peer.client_nonce, peer.server_nonce))) {
      return false;
    }
    peer.stage = Peer::Stage::kServed;
    peer.answer("");
    return true;
  }

  bool answer(Peer& peer, const std::string& message) {
    auto request = wire::decode_request(message);
    if (!request.ok()) return false;
    switch (request->kind) {
      case wire::Request::Kind::kGet: {
        const auto value = values_.get(request->key);
        if (value == nullptr && request->wait_ms > 0) {
          constexpr std::uint32_t kMostWait_ms = 10'000;
          peer.waits_for = std::move(request->key);
          peer.waits_until =
              std::chrono::steady_clock::now() + std::chrono::milliseconds(std::min(request->wait_ms, kMostWait_ms));
          return true;
        }
        peer.answer(value == nullptr ? std::string_view() : *value);
        return true;
      }
      case wire::Request::Kind::kCompareSet: {
        const auto value = values_.compare_set(request->key, request->expected, std::move(request->desired));
        n_values_ = values_.n_values();
        peer.answer(value == nullptr ? std::string_view() : *value);
        tell_waiting(request->key);
        return true;
      }
      case wire::Request::Kind::kDropBefore:
        values_.drop_before(request->key.space, request->key.window);
        n_values_ = values_.n_values();
        peer.answer("");
        return true;
    }
    return false;
  }

  void tell_waiting(const StoreKey& key) {
    const auto value = values_.get(key);
    if (value == nullptr) return;
    for (const auto& peer : peers_) {
      if (peer->is_lost || !peer->waits_for || *peer->waits_for != key) continue;
      peer->answer(*value);
      send(*peer);
    }
  }

  const TcpServerOptions options_;
  const OwnedFd listening_;
  const OwnedFd wake_;

  std::atomic<std::size_t> n_values_{0};  // written by the loop

  ValueTable values_;  // from here on: the loop thread's own
  std::vector<std::unique_ptr<Peer>> peers_;
  std::vector<pollfd> polled_;
  bool is_out_of_descriptors_ = false;
};

TcpServer::TcpServer(std::unique_ptr<Loop> loop, std::uint16_t port)
    : loop_(std::move(loop)), port_(port), thread_([this](const std::stop_token& stop) { loop_->run(stop); }) {}

TcpServer::~TcpServer() {
  thread_.request_stop();
  loop_->wake();
}

std::size_t TcpServer::n_values() const { return loop_->n_values(); }

Result<std::unique_ptr<TcpServer>> TcpServer::start(TcpServerOptions options) {
  int error = 0;
  for (const std::uint16_t port : options.ports) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_port = htons(port);
    if (::inet_pton(AF_INET, options.address.c_str(), &at.sin_addr) != 1) {
      return Status(Reason::kSettings, options.address + " is no address to listen at");
    }
    OwnedFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    const int on = 1;
    ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    socklen_t n = sizeof at;
    if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&at), n) != 0 || ::listen(fd.get(), 1024) != 0 ||
        ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&at), &n) != 0) {
      error = errno;
      continue;
    }
    OwnedFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    const std::uint16_t taken = ntohs(at.sin_port);
    auto loop = std::make_unique<Loop>(std::move(options), std::move(fd), std::move(wake));
    return std::unique_ptr<TcpServer>(new TcpServer(std::move(loop), taken));
  }
  return Status(Reason::kSettings, fmt::format("no port for the exchange's service is free: {}",
                                               error != 0 ? std::strerror(error) : "none was given"));
}

}  // namespace stoker

#include "source/testing/loopback_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <cstring>

namespace stoker::testing {

struct LoopbackServer::Connection {
  int fd = -1;
  std::string in;
  std::string out;
  std::size_t n_written = 0;
  std::vector<ServerRequest> held;
  bool closes_when_written = false;
  bool resets_when_written = false;
  bool is_silent = false;  // answers nothing more
  int n_unanswered = 0;
  std::size_t drip_bytes = 0;
  std::chrono::milliseconds drip_pause{0};
};

LoopbackServer::LoopbackServer(Handler handler, ServerPlace place)
    : handler_(std::move(handler)), address_(place.address) {
  listen_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  inet_pton(AF_INET, place.address, &address.sin_addr);
  address.sin_port = htons(static_cast<std::uint16_t>(place.port));
  const int one = 1;
  setsockopt(listen_, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  socklen_t size = sizeof address;
  bind(listen_, reinterpret_cast<sockaddr*>(&address), size);
  listen(listen_, 4096);
  getsockname(listen_, reinterpret_cast<sockaddr*>(&address), &size);
  port_ = ntohs(address.sin_port);
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  event_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  for (const int fd : {listen_, event_}) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event);
  }
  thread_ = std::thread([this] { run(); });
}

LoopbackServer::~LoopbackServer() {
  is_stopping_.store(true);
  eventfd_write(event_, 1);
  thread_.join();
  while (!connections_.empty()) close_connection(connections_.begin()->first, false);
  for (const int fd : {listen_, epoll_, event_}) close(fd);
}

void LoopbackServer::hold(bool on) {
  is_held_.store(on);
  eventfd_write(event_, 1);
}

bool LoopbackServer::wait_for_requests(int n) {
  MutexLock lock(mu_);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (static_cast<int>(targets_.size()) < n) {
    if (arrived_.wait_until(lock, deadline) == std::cv_status::timeout) return static_cast<int>(targets_.size()) >= n;
  }
  return true;
}

std::vector<std::string> LoopbackServer::targets() const {
  MutexLock lock(mu_);
  return targets_;
}

int LoopbackServer::n_requests() const {
  MutexLock lock(mu_);
  return static_cast<int>(targets_.size());
}

int LoopbackServer::n_open_peak() const {
  MutexLock lock(mu_);
  return n_open_peak_;
}

void LoopbackServer::run() {
  std::array<epoll_event, 128> events;
  while (!is_stopping_.load()) {
    const int n = epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), wait_ms());
    drip_on();
    for (int i = 0; i < n; ++i) {
      const int fd = events[static_cast<std::size_t>(i)].data.fd;
      if (fd == listen_) {
        accept_all();
      } else if (fd == event_) {
        eventfd_t count = 0;
        eventfd_read(event_, &count);
        if (is_held_.load()) continue;
        std::vector<int> all;
        for (const auto& [number, connection] : connections_) all.push_back(number);
        for (const int number : all) {
          const auto it = connections_.find(number);
          std::vector<ServerRequest> held = std::move(it->second->held);
          it->second->held.clear();
          for (const ServerRequest& request : held) answer(*it->second, request);
          write_some(*it->second);
        }
      } else if (const auto it = connections_.find(fd); it != connections_.end()) {
        if (events[static_cast<std::size_t>(i)].events & EPOLLOUT) {
          write_some(*it->second);
        } else {
          read_some(*it->second);
        }
      }
    }
  }
}

int LoopbackServer::wait_ms() const {
  if (next_drip_.empty()) return -1;
  const auto due = std::min_element(next_drip_.begin(), next_drip_.end(),
                                    [](const auto& a, const auto& b) { return a.second < b.second; });
  const auto left = due->second - std::chrono::steady_clock::now();
  return std::max(0, static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(left).count()));
}

void LoopbackServer::drip_on() {
  std::vector<int> due;
  for (const auto& [fd, at] : next_drip_) {
    if (at <= std::chrono::steady_clock::now()) due.push_back(fd);
  }
  for (const int fd : due) {
    next_drip_.erase(fd);
    write_some(*connections_.at(fd));
  }
}

void LoopbackServer::accept_all() {
  while (true) {
    const int fd = accept4(listen_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) return;
    const int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    n_connections_.fetch_add(1);
    auto connection = std::make_unique<Connection>();
    connection->fd = fd;
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event);
    connections_.emplace(fd, std::move(connection));
  }
}

void LoopbackServer::read_some(Connection& connection) {
  std::array<char, 16384> buffer;
  const ssize_t n = recv(connection.fd, buffer.data(), buffer.size(), 0);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n <= 0) {
    close_connection(connection.fd, false);
    return;
  }
  connection.in.append(buffer.data(), static_cast<std::size_t>(n));
  take_requests(connection);
}

void LoopbackServer::take_requests(Connection& connection) {
  for (std::size_t end = connection.in.find("\r\n\r\n"); end != std::string::npos;
       end = connection.in.find("\r\n\r\n")) {
    ServerRequest request;
    const std::string head = connection.in.substr(0, end);
    connection.in.erase(0, end + 4);
    const std::size_t line_end = std::min(head.find("\r\n"), head.size());
    const std::size_t first = head.find(' ');
    const std::size_t last = head.rfind(' ', line_end);
    request.method = head.substr(0, first);
    request.target = head.substr(first + 1, last - first - 1);
    for (std::size_t at = line_end; at < head.size();) {
      const std::size_t begin = at + 2;
      at = std::min(head.find("\r\n", begin), head.size());
      const std::size_t colon = head.find(": ", begin);
      std::string name = head.substr(begin, colon - begin);
      std::transform(name.begin(), name.end(), name.begin(),
                     [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
      request.headers[name] = head.substr(colon + 2, at - colon - 2);
    }
    {
      MutexLock lock(mu_);
      request.number = static_cast<int>(targets_.size());
      targets_.push_back(request.target);
      n_open_peak_ = std::max(n_open_peak_, ++n_open_);
      ++connection.n_unanswered;
      arrived_.notify_all();
    }
    if (is_held_.load()) {
      connection.held.push_back(std::move(request));
    } else {
      answer(connection, request);
    }
  }
  write_some(connection);
}

void LoopbackServer::answer(Connection& connection, const ServerRequest& request) {
  if (connection.is_silent) return;
  const ServerReply reply = handler_(request);
  if (reply.stalls_first) {
    connection.is_silent = true;
    return;
  }
  if (reply.then != ServerReply::Then::kStall) {
    MutexLock lock(mu_);
    --n_open_;
    --connection.n_unanswered;
  }
  if (!reply.raw.empty()) {
    connection.out += reply.raw;
  } else {
    connection.out += "HTTP/1.1 " + std::to_string(reply.status) + " Answer\r\n";
    const std::uint64_t length = reply.announced.value_or(reply.body.size());
    if (length != ServerReply::kNoLength) connection.out += "Content-Length: " + std::to_string(length) + "\r\n";
    for (const auto& [name, value] : reply.headers)
      connection.out.append(name).append(": ").append(value).append("\r\n");
    connection.out += "\r\n";
    connection.out += reply.body.substr(0, reply.n_send);
  }
  connection.drip_bytes = reply.drip_bytes;
  connection.drip_pause = reply.drip_pause;
  connection.closes_when_written = reply.then == ServerReply::Then::kClose || reply.then == ServerReply::Then::kReset;
  connection.resets_when_written = reply.then == ServerReply::Then::kReset;
  connection.is_silent = reply.then == ServerReply::Then::kStall;
}

void LoopbackServer::write_some(Connection& connection) {
  if (next_drip_.contains(connection.fd)) return;
  const std::size_t end = connection.drip_bytes == 0
                              ? connection.out.size()
                              : std::min(connection.out.size(), connection.n_written + connection.drip_bytes);
  while (connection.n_written < end) {
    const ssize_t n =
        send(connection.fd, connection.out.data() + connection.n_written, end - connection.n_written, MSG_NOSIGNAL);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) break;
    if (n < 0) {
      close_connection(connection.fd, false);
      return;
    }
    connection.n_written += static_cast<std::size_t>(n);
  }
  const bool all = connection.n_written == connection.out.size();
  if (all) {
    connection.out.clear();
    connection.n_written = 0;
  }
  if (all && connection.closes_when_written) {
    close_connection(connection.fd, connection.resets_when_written);
    return;
  }
  const bool drips = !all && connection.n_written == end;
  if (drips) next_drip_[connection.fd] = std::chrono::steady_clock::now() + connection.drip_pause;
  epoll_event event{};
  event.events = all || drips ? EPOLLIN : EPOLLOUT;
  event.data.fd = connection.fd;
  epoll_ctl(epoll_, EPOLL_CTL_MOD, connection.fd, &event);
}

void LoopbackServer::close_connection(int fd, bool with_reset) {
  const auto it = connections_.find(fd);
  if (it == connections_.end()) return;
  {
    MutexLock lock(mu_);
    n_open_ -= it->second->n_unanswered;
  }
  if (with_reset) {
    const linger now{1, 0};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  }
  close(fd);
  next_drip_.erase(fd);
  connections_.erase(it);
}

}  // namespace stoker::testing

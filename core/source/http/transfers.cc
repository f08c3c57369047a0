#include "source/http/transfers.h"

#include <netinet/in.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <string_view>

namespace stoker {
namespace {

constexpr int kTransfersPerGroup = 64;
// Of a group: so that a few hosts in turn do not close each other's connections.
constexpr long kConnectionsPerGroup = 4 * kTransfersPerGroup;
// Of HTTP/2: one lost packet holds up all requests of a connection, and one connection is one server behind the name.
constexpr long kStreamsPerConnection = 8;

// "http://user@host:80/" -> "host"; an IPv6 address with its brackets.
std::string_view host_of_url(std::string_view url) {
  if (const std::size_t at = url.find("://"); at != url.npos) url.remove_prefix(at + 3);
  url = url.substr(0, url.find_first_of("/?#"));
  if (const std::size_t at = url.rfind('@'); at != url.npos) url.remove_prefix(at + 1);
  return url.starts_with('[') ? url : url.substr(0, url.find(':'));
}

void init_curl_once() {
  static std::once_flag once;
  std::call_once(
      once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });  // never undone: other libraries in the process may use it
}

// How much may arrive before it is read. Linux begins with 64 KiB and learns from transfers that take long, so a
// picture came in two pieces, with its buffer half full in between: a thousand of them are more than a cache holds. A
// mark that more must be there before a read widens the window for good, which then goes on learning (SO_RCVBUF would
// end that).
constexpr int kWindowBytes = 256 * 1024;

void widen_window(int fd) {
  for (const int n_bytes : {kWindowBytes, 1}) setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &n_bytes, sizeof n_bytes);
}

}  // namespace

Transfer::Transfer(Transfers& all) : all_(all), group_(all.join_group()), easy_(curl_easy_init()) {
  curl_easy_setopt(easy(), CURLOPT_PRIVATE, this);
  curl_easy_setopt(easy(), CURLOPT_SHARE, all.share_.get());
  curl_easy_setopt(easy(), CURLOPT_OPENSOCKETFUNCTION, &Transfers::open_socket);
  curl_easy_setopt(easy(), CURLOPT_OPENSOCKETDATA, this);
  curl_easy_setopt(easy(), CURLOPT_CLOSESOCKETFUNCTION, &Transfers::close_socket);
  curl_easy_setopt(easy(), CURLOPT_CLOSESOCKETDATA, &all);
  curl_easy_setopt(easy(), CURLOPT_NOSIGNAL, 1L);
}

Transfers::~Transfers() {
  end();
  for (const int fd : {epoll_, event_}) {
    if (fd >= 0) close(fd);
  }
}

Status Transfers::start() {
  init_curl_once();
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  event_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (epoll_ < 0 || event_ < 0) return {Reason::kFetchFdLimit, "no descriptors left for the network loop"};
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = event_;
  epoll_ctl(epoll_, EPOLL_CTL_ADD, event_, &event);
  share_.reset(curl_share_init());
  if (!share_) return {Reason::kInternal, "curl_share_init failed"};
  for (const curl_lock_data what : {CURL_LOCK_DATA_DNS, CURL_LOCK_DATA_SSL_SESSION}) {
    curl_share_setopt(share_.get(), CURLSHOPT_SHARE, what);  // one thread: no locks
  }
  return {};
}

// The last group until it is full: transfers that are used again and again are those of the first groups.
int Transfers::join_group() {
  if (groups_.empty() || groups_.back()->n_transfers == kTransfersPerGroup) {
    const int number = static_cast<int>(groups_.size());
    groups_.push_back(std::make_unique<Group>(Group{*this, number, {curl_multi_init(), {}}}));
    Group& group = *groups_.back();
    curl_multi_setopt(group.multi.get(), CURLMOPT_SOCKETFUNCTION, &Transfers::on_socket);
    curl_multi_setopt(group.multi.get(), CURLMOPT_SOCKETDATA, &group);
    curl_multi_setopt(group.multi.get(), CURLMOPT_TIMERFUNCTION, &Transfers::on_timer);
    curl_multi_setopt(group.multi.get(), CURLMOPT_TIMERDATA, &group);
    curl_multi_setopt(group.multi.get(), CURLMOPT_MAXCONNECTS, kConnectionsPerGroup);
    curl_multi_setopt(group.multi.get(), CURLMOPT_MAX_CONCURRENT_STREAMS, kStreamsPerConnection);
  }
  ++groups_.back()->n_transfers;
  return groups_.back()->number;
}

bool Transfers::begin(Transfer& transfer) {
  transfer.lacks_descriptors_ = false;
  transfer.last_use_ = {};
  Group& group = *groups_[static_cast<std::size_t>(transfer.group_)];
  return curl_multi_add_handle(group.multi.get(), transfer.easy()) == CURLM_OK;
}

void Transfers::cancel(Transfer& transfer) {
  Group& group = *groups_[static_cast<std::size_t>(transfer.group_)];
  curl_multi_remove_handle(group.multi.get(), transfer.easy());
}

void Transfers::wait(Nanos now, Nanos due) {
  due = std::min(due, due_);
  int timeout_ms = -1;
  if (due <= now) {
    timeout_ms = 0;
  } else if (due != Nanos::max()) {
    // Up, not down: waking a moment early would spin until the moment comes.
    timeout_ms = static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(due - now).count());
  }
  n_events_ = epoll_wait(epoll_, events_.data(), static_cast<int>(events_.size()), timeout_ms);
}

void Transfers::wake() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = write(event_, &one, sizeof one);
}

void Transfers::act(Group& group, curl_socket_t fd, int what) {
  int n_running = 0;
  curl_multi_socket_action(group.multi.get(), fd, what, &n_running);
  if (group.has_acted) return;
  group.has_acted = true;
  acted_.push_back(&group);
}

bool Transfers::act_once(Nanos now) {
  while (n_acted_ < n_events_) {
    const epoll_event& event = events_[static_cast<std::size_t>(n_acted_++)];
    const int fd = event.data.fd;
    if (fd == event_) {
      std::uint64_t count = 0;
      [[maybe_unused]] const ssize_t ignored = read(event_, &count, sizeof count);
      continue;
    }
    Watched& socket = watched(fd);
    if ((event.events & EPOLLERR) == 0) socket.is_connected = true;
    if (socket.wanted ==
        0) {  // an idle connection was closed by the other side: curl finds that out when it wants to use it
      epoll_ctl(epoll_, EPOLL_CTL_DEL, fd, nullptr);
      socket.told = 0;
      continue;
    }
    int what = 0;
    if (event.events & (EPOLLIN | EPOLLHUP | EPOLLERR)) what |= CURL_CSELECT_IN;
    if (event.events & EPOLLOUT) what |= CURL_CSELECT_OUT;
    if (event.events & EPOLLERR) what |= CURL_CSELECT_ERR;
    act(*groups_[static_cast<std::size_t>(socket.group)], fd, what);
    return true;
  }
  n_events_ = n_acted_ = 0;
  if (now < due_) return false;
  for (const auto& group : groups_) {
    if (group->due > now) continue;
    group->due = Nanos::max();
    act(*group, CURL_SOCKET_TIMEOUT, 0);
  }
  due_ = Nanos::max();
  for (const auto& group : groups_) due_ = std::min(due_, group->due);
  return false;
}

std::optional<Transfers::Ended> Transfers::next_ended() {
  while (!acted_.empty()) {
    Group& group = *acted_.back();
    int n_left = 0;
    while (const CURLMsg* message = curl_multi_info_read(group.multi.get(), &n_left)) {
      if (message->msg != CURLMSG_DONE) continue;
      const CURLcode code = message->data.result;
      void* user = nullptr;
      curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &user);
      auto& transfer = *static_cast<Transfer*>(user);
      curl_multi_remove_handle(group.multi.get(), transfer.easy());
      return Ended{transfer, code};
    }
    group.has_acted = false;
    acted_.pop_back();
  }
  return std::nullopt;
}

Transfers::Watched& Transfers::watched(int fd) {
  if (watched_.size() <= static_cast<std::size_t>(fd)) watched_.resize(static_cast<std::size_t>(fd) + 64);
  return watched_[static_cast<std::size_t>(fd)];
}

// Another address than libcurl's, if the book knows a better one: libcurl cares only for what stands in `address`.
AddressBook::Use Transfers::choose(Transfer& transfer, curl_sockaddr& address) {
  char* url = nullptr;
  curl_easy_getinfo(transfer.easy(), CURLINFO_EFFECTIVE_URL, &url);  // after a redirect another one than was asked for
  if (transfer.goes_through_proxy_ || url == nullptr) return {};
  const std::string_view host = host_of_url(url);
  IpAddress offered;
  offered.family = address.family;
  void* place = nullptr;
  std::size_t size = 0;
  if (address.family == AF_INET) {
    place = &reinterpret_cast<sockaddr_in*>(&address.addr)->sin_addr;
    size = 4;
  } else if (address.family == AF_INET6) {
    place = &reinterpret_cast<sockaddr_in6*>(&address.addr)->sin6_addr;
    size = 16;
  }
  const bool is_name = !host.empty() && host.front() != '[' && host.find_first_not_of("0123456789.") != host.npos;
  if (place == nullptr || !is_name) return {};
  std::memcpy(offered.bytes.data(), place, size);
  const AddressBook::Use use = book_.pick(host, offered);
  if (use.host >= 0 && use.host == transfer.last_use_.host && use.address.family == transfer.last_use_.address.family) {
    book_.release(use);
    book_.failed(transfer.last_use_);
    const AddressBook::Use other = book_.pick(host, offered);
    std::memcpy(place, other.address.bytes.data(), size);
    return transfer.last_use_ = other;
  }
  std::memcpy(place, use.address.bytes.data(), size);
  return transfer.last_use_ = use;
}

curl_socket_t Transfers::open_socket(void* user, curlsocktype, curl_sockaddr* address) {
  auto& transfer = *static_cast<Transfer*>(user);
  const int fd = socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
  widen_window(fd);
  if (fd < 0) {
    transfer.lacks_descriptors_ = errno == EMFILE || errno == ENFILE;
    return CURL_SOCKET_BAD;
  }
  Transfers& all = transfer.all_;
  Watched opened;
  opened.is_ours = true;
  opened.group = transfer.group_;
  opened.use = all.choose(transfer, *address);
  all.watched(fd) = opened;
  return fd;
}

int Transfers::close_socket(void* user, curl_socket_t fd) {
  auto& all = *static_cast<Transfers*>(user);
  Watched& socket = all.watched(fd);
  sockaddr_storage peer;
  socklen_t size = sizeof peer;
  if (!socket.is_connected && getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0) {
    all.book_.failed(socket.use);
  }
  all.book_.release(socket.use);
  socket = {};  // closing takes it out of epoll
  return close(fd);
}

void Transfers::watch(int fd, std::uint32_t wanted, int group) {
  Watched& socket = watched(fd);
  socket.wanted = wanted;
  socket.group = group;
  // Between two requests of a kept connection the interest goes and comes back: for sockets of ours epoll may keep it
  // meanwhile.
  if (wanted == socket.told || (wanted == 0 && socket.is_ours)) return;
  epoll_event event{};
  event.events = wanted;
  event.data.fd = fd;
  const int operation = wanted == 0 ? EPOLL_CTL_DEL : socket.told == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
  if (epoll_ctl(epoll_, operation, fd, &event) != 0 && operation == EPOLL_CTL_ADD && errno == EEXIST) {
    epoll_ctl(epoll_, EPOLL_CTL_MOD, fd, &event);
  }
  socket.told = wanted;
}

int Transfers::on_socket(CURL*, curl_socket_t fd, int what, void* user, void*) {
  std::uint32_t wanted = 0;
  if (what == CURL_POLL_IN || what == CURL_POLL_INOUT) wanted |= EPOLLIN;
  if (what == CURL_POLL_OUT || what == CURL_POLL_INOUT) wanted |= EPOLLOUT;
  const auto& group = *static_cast<Group*>(user);
  group.all.watch(fd, wanted, group.number);
  return 0;
}

int Transfers::on_timer(CURLM*, long timeout_ms, void* user) {
  auto& group = *static_cast<Group*>(user);
  Transfers& all = group.all;
  group.due = timeout_ms < 0 ? Nanos::max() : all.clock_.now() + std::chrono::milliseconds(timeout_ms);
  all.due_ = std::min(all.due_, group.due);
  return 0;
}

}  // namespace stoker

#include "peers/socket.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "peers/messages.h"

namespace stoker::peers {
namespace {

constexpr int kBacklog = 64;

Status failed(std::string_view what) {
  return Status(Reason::kInternal, fmt::format("peers: {}: {}", what, std::strerror(errno)));
}

struct Address {
  sockaddr_un value{};
  socklen_t size = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&value); }
};

Address address_of(const std::string& name) {
  Address a;
  a.value.sun_family = AF_UNIX;
  const std::size_t n = std::min(name.size(), sizeof a.value.sun_path - 1);
  std::memcpy(a.value.sun_path + 1, name.data(), n);  // a leading zero byte: no file
  a.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + n);
  return a;
}

OwnedFd new_socket() { return OwnedFd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)); }

}  // namespace

Result<std::optional<OwnedFd>> listen_at(const std::string& name) {
  OwnedFd s = new_socket();
  if (!s.is_open()) return failed("no socket");
  const Address address = address_of(name);
  if (bind(s.get(), address.get(), address.size) != 0) {
    if (errno == EADDRINUSE) return std::optional<OwnedFd>();
    return failed("cannot take a name");
  }
  if (listen(s.get(), kBacklog) != 0) return failed("cannot listen");
  return std::optional<OwnedFd>(std::move(s));
}

Result<std::optional<OwnedFd>> connect_to(const std::string& name) {
  OwnedFd s = new_socket();
  if (!s.is_open()) return failed("no socket");
  const Address address = address_of(name);
  if (connect(s.get(), address.get(), address.size) == 0) return std::optional<OwnedFd>(std::move(s));
  if (errno == ECONNREFUSED || errno == EAGAIN || errno == EINTR) return std::optional<OwnedFd>();
  return failed("cannot connect");
}

std::optional<OwnedFd> accept_from(const OwnedFd& listener) {
  OwnedFd s(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!s.is_open()) return std::nullopt;
  return s;
}

std::optional<Process> process_at(const OwnedFd& socket) {
  ucred who{};
  socklen_t size = sizeof who;
  if (getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &who, &size) != 0) return std::nullopt;
  return Process{who.pid, who.uid};
}

OwnedFd watch_process(pid_t pid) {
#ifdef SYS_pidfd_open
  if (pid > 0) return OwnedFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
#endif
  (void)pid;
  return {};
}

Sent send_message(const OwnedFd& socket, std::string_view bytes, int fd) {
  iovec part{const_cast<char*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  }
  ssize_t n = 0;
  do n = sendmsg(socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  while (n < 0 && errno == EINTR);
  if (n >= 0) return Sent::kYes;
  // ETOOMANYREFS: too many files are on their way over all sockets of this user.
  const bool is_full = errno == EAGAIN || errno == ENOBUFS || errno == ETOOMANYREFS || errno == ENOMEM;
  return is_full ? Sent::kNotNow : Sent::kGone;
}

Received receive_message(const OwnedFd& socket) {
  Received out;
  std::array<char, kMaxMessageBytes> buffer;
  iovec part{buffer.data(), buffer.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  message.msg_control = control;
  message.msg_controllen =
      CMSG_LEN(sizeof(int));  // room for one file, not for what aligns it: the kernel closes others
  ssize_t n = 0;
  // ECONNRESET comes once, before what is still there to be read, if the other end closed without reading all of ours.
  do n = recvmsg(socket.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  while (n < 0 && (errno == EINTR || errno == ECONNRESET));
  if (n > 0) out.bytes.assign(buffer.data(), static_cast<std::size_t>(n));
  if (n < 0 && errno == EAGAIN) return out;
  if (n > 0) {
    for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
      if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
      int fd = -1;
      if (header->cmsg_len < CMSG_LEN(sizeof fd)) continue;
      std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
      out.file = OwnedFd(fd);
    }
  }
  const bool is_message = n > 0 && (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0;
  out.what = is_message ? Received::What::kMessage : Received::What::kGone;
  return out;
}

Waker::Waker() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

void Waker::wake() const {
  const std::uint64_t one = 1;
  (void)!write(fd_.get(), &one, sizeof one);
}

void Waker::clear() const {
  std::uint64_t n = 0;
  (void)!read(fd_.get(), &n, sizeof n);
}

}  // namespace stoker::peers

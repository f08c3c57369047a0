#pragma once

#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "exec/owned_fd.h"

namespace stoker::peers {

/// Local sockets that keep messages apart, under names that no file stands for: they are gone with their process.
/// Nothing here blocks.

/// @return Nothing if another socket has the name. @param name  At most 100 characters.
Result<std::optional<OwnedFd>> listen_at(const std::string& name);
/// @return Nothing if nobody listens there, or too many ask at once.
Result<std::optional<OwnedFd>> connect_to(const std::string& name);
/// The next that connected, or nothing.
std::optional<OwnedFd> accept_from(const OwnedFd& listener);

/// Who is at the other end, as the kernel says.
struct Process {
  pid_t pid = 0;  ///< 0: in another container
  uid_t uid = 0;
};
std::optional<Process> process_at(const OwnedFd& socket);
/// Becomes readable when the process ends, although a child that it forked may keep its sockets open. Not open where
/// the kernel cannot tell.
OwnedFd watch_process(pid_t pid);

enum class Sent { kYes, kNotNow, kGone };
/// One whole message, and a file with it. @param fd  -1: none.
Sent send_message(const OwnedFd& socket, std::string_view bytes, int fd = -1);

struct Received {
  enum class What { kMessage, kNothing, kGone } what = What::kNothing;
  std::string bytes;
  OwnedFd file;
};
/// The next message, at most kMaxMessageBytes: a longer one counts as the end of the connection.
Received receive_message(const OwnedFd& socket);

/// What a thread's poll() wakes up from. Threads: any.
class Waker {
 public:
  Waker();
  int fd() const { return fd_.get(); }
  void wake() const;
  void clear() const;

 private:
  OwnedFd fd_;
};

}  // namespace stoker::peers

#pragma once

#include <curl/curl.h>
#include <sys/epoll.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "source/http/address_book.h"

namespace stoker {

class Transfers;

/// A libcurl handle that carries one transfer after another, each over a connection that an earlier one left if there
/// is one. Stays where it is.
class Transfer {
 public:
  /// Of `Transfers`, for as long as it lives.
  explicit Transfer(Transfers& all);
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  CURL* easy() { return easy_.get(); }
  /// Connections go to the proxy's address, which is none of the URL's host.
  void set_goes_through_proxy(bool does) { goes_through_proxy_ = does; }
  bool goes_through_proxy() const { return goes_through_proxy_; }
  /// No connection could be opened since `begin`, because descriptors ran out.
  bool lacks_descriptors() const { return lacks_descriptors_; }

 private:
  friend class Transfers;
  struct EasyDeleter {
    void operator()(CURL* easy) const { curl_easy_cleanup(easy); }
  };

  Transfers& all_;
  int group_ = 0;
  bool lacks_descriptors_ = false;
  bool goes_through_proxy_ = false;
  AddressBook::Use last_use_;  // where a connection was opened since `begin`; another one means that it failed
  std::unique_ptr<CURL, EasyDeleter> easy_;
};

/// Many transfers on one thread: libcurl's multi interface over epoll.
///
/// Not libcurl's own poll loop: that looks at every connection on every turn, this one only at those where something
/// happened. And not one multi handle: before each request libcurl goes through all connections of its multi handle to
/// find a free one, so transfers are kept in groups with a handle each; name lookups and TLS sessions are shared.
/// Not thread-safe, except `wake`.
class Transfers {
 public:
  /// @param book  Outlives this.
  Transfers(AddressBook& book, const Clock& clock) : book_(book), clock_(clock) {}
  ~Transfers();
  Transfers(const Transfers&) = delete;
  Transfers& operator=(const Transfers&) = delete;

  /// @return kInternal or FETCH_FD_LIMIT if the system refuses what it needs.
  Status start();

  /// Closes all connections. After all transfers.
  void end() { groups_.clear(); }

  /// False if libcurl refuses.
  bool begin(Transfer& transfer);
  /// Of one that has not ended by itself.
  void cancel(Transfer& transfer);

  /// Sleeps until something happens, at most until `due`, or until `wake`.
  void wait(Nanos now, Nanos due);
  /// Ends a `wait`, the next one if there is none. Threads: any. Async-signal-cheap: one write.
  void wake();
  /// Lets libcurl act on one of the things that happened since `wait`. False: that was the last.
  bool act_once(Nanos now);
  struct Ended {
    Transfer& transfer;
    CURLcode code;
  };
  /// One that has ended by itself, each once.
  std::optional<Ended> next_ended();

 private:
  friend class Transfer;
  struct MultiDeleter {
    void operator()(CURLM* multi) const { curl_multi_cleanup(multi); }
  };
  struct ShareDeleter {
    void operator()(CURLSH* share) const { curl_share_cleanup(share); }
  };
  struct Group {
    Transfers& all;
    int number;
    std::unique_ptr<CURLM, MultiDeleter> multi;
    int n_transfers = 0;
    Nanos due = Nanos::max();  // when libcurl wants to be called
    bool has_acted = false;    // is in acted_
  };
  // What epoll watches for a descriptor. curl drops and takes back its interest with every request; epoll is told only
  // when it matters.
  struct Watched {
    bool is_ours = false;  // opened by open_socket, so that we know when the number means another socket
    std::uint32_t told = 0;
    std::uint32_t wanted = 0;
    int group = 0;
    bool is_connected = false;  // something was heard of it
    AddressBook::Use use;
  };

  int join_group();  // its number
  void act(Group& group, curl_socket_t fd, int what);
  Watched& watched(int fd);
  void watch(int fd, std::uint32_t wanted, int group);

  static int on_socket(CURL* easy, curl_socket_t fd, int what, void* group, void*);
  static int on_timer(CURLM* multi, long timeout_ms, void* group);
  AddressBook::Use choose(Transfer& transfer, curl_sockaddr& address);
  static curl_socket_t open_socket(void* transfer, curlsocktype purpose, curl_sockaddr* address);
  static int close_socket(void* transfers, curl_socket_t fd);

  AddressBook& book_;
  const Clock& clock_;
  int epoll_ = -1;
  int event_ = -1;
  std::unique_ptr<CURLSH, ShareDeleter> share_;  // outlives the groups
  std::vector<std::unique_ptr<Group>> groups_;
  std::vector<Group*> acted_;     // since next_ended had nothing more
  std::vector<Watched> watched_;  // by descriptor
  std::array<epoll_event, 256> events_{};
  int n_events_ = 0, n_acted_ = 0;
  Nanos due_ = Nanos::max();  // no later than the first group's
};

}  // namespace stoker

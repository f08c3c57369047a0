#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "source/http/ip_address.h"

namespace stoker {

/// Spreads connections over all addresses of a host. An object store has many front ends behind its name and names a
/// few of them in each lookup; libcurl would open every connection to the first of those, as long as it remembers them.
///
/// A thread looks hosts up when they are used, anew after half a minute; a caller never waits for it, and gets what
/// libcurl offers until an answer is there. Threads: any.
class AddressBook {
 public:
  /// Addresses of a host, all at once; looks at `stop` often. For tests.
  using Resolve = std::function<std::vector<IpAddress>(const std::string& host, const std::stop_token& stop)>;
  static std::vector<IpAddress> ask_system(const std::string& host, const std::stop_token& stop);

  static constexpr Nanos kRefresh = std::chrono::seconds(30);
  static constexpr Nanos kAvoid = std::chrono::seconds(30);  ///< an address that refused a connection
  static constexpr int kKeptLookups = 3;                     ///< an address is forgotten when so many left it out
  static constexpr std::size_t kMaxHosts = 1024;
  static constexpr std::size_t kMaxAddresses = 64;  ///< of a host

  AddressBook(Resolve resolve, const Clock& clock);
  ~AddressBook();
  AddressBook(const AddressBook&) = delete;
  AddressBook& operator=(const AddressBook&) = delete;

  /// Ends the thread, within a tenth of a second, whatever the name servers do. Not from two threads at a time.
  void stop();

  /// A connection that is being opened or is open. Plain: its owner gives it back.
  struct Use {
    int host = -1;  ///< -1: not counted
    IpAddress address;
  };
  /// Where to connect to, for a host that the name lookup found at `offered`: of the addresses of the same family, the
  /// one with the fewest connections that did not fail lately.
  Use pick(std::string_view host, const IpAddress& offered) STOKER_EXCLUDES(mu_);
  /// No connection could be opened there.
  void failed(const Use& use) STOKER_EXCLUDES(mu_);
  /// The connection is closed.
  void release(const Use& use) STOKER_EXCLUDES(mu_);

 private:
  struct Known {
    IpAddress address;
    int n_open = 0;
    int n_missed = 0;  // lookups since it was named
    std::optional<Nanos> failed_at = {};
  };
  struct Host {
    std::string name;
    std::vector<Known> addresses = {};
    std::optional<Nanos> looked_up_at = {};
    bool is_wanted = false;  // to be looked up
    std::size_t turn = 0;    // where to begin among equals
  };

  void run(const std::stop_token& stop) STOKER_EXCLUDES(mu_);
  Host* find(std::string_view name) STOKER_REQUIRES(mu_);
  Known* find(const Use& use) STOKER_REQUIRES(mu_);
  static void merge(Host& host, const std::vector<IpAddress>& found);

  const Resolve resolve_;
  const Clock& clock_;
  Mutex mu_;
  std::condition_variable_any wanted_;
  std::deque<Host> hosts_ STOKER_GUARDED_BY(mu_);  // by number; never removed
  std::jthread thread_;
};

}  // namespace stoker

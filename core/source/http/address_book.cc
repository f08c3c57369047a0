#include "source/http/address_book.h"

#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <memory>
#include <utility>

#include "exec/cpu.h"

namespace stoker {
namespace {

// A lookup by the C library's own threads, which cannot be called off: who stops waiting leaves it to them.
struct Lookup {
  explicit Lookup(std::string host) : name(std::move(host)) {
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_ADDRCONFIG;
    request.ar_name = name.c_str();
    request.ar_request = &hints;
  }
  ~Lookup() {
    if (request.ar_result != nullptr) freeaddrinfo(request.ar_result);
  }
  Lookup(const Lookup&) = delete;
  Lookup& operator=(const Lookup&) = delete;
  bool is_under_way() { return gai_error(&request) == EAI_INPROGRESS; }

  const std::string name;
  addrinfo hints{};
  gaicb request{};
};

// Until the C library is done with them they must live, longer than whoever began them.
void abandon(std::unique_ptr<Lookup> lookup) {
  static Mutex mu;
  static auto* const abandoned = new std::vector<std::unique_ptr<Lookup>>();
  MutexLock lock(mu);
  std::erase_if(*abandoned, [](const auto& old) { return !old->is_under_way(); });
  abandoned->push_back(std::move(lookup));
}

}  // namespace

std::vector<IpAddress> AddressBook::ask_system(const std::string& host, const std::stop_token& stop) {
  auto lookup = std::make_unique<Lookup>(host);
  gaicb* requests[] = {&lookup->request};
  if (getaddrinfo_a(GAI_NOWAIT, requests, 1, nullptr) != 0) return {};
  while (lookup->is_under_way()) {
    if (stop.stop_requested()) {
      if (gai_cancel(&lookup->request) == EAI_NOTCANCELED) abandon(std::move(lookup));
      return {};
    }
    const timespec slice{0, 50'000'000};
    gai_suspend(requests, 1, &slice);
  }
  std::vector<IpAddress> found;
  if (gai_error(&lookup->request) != 0) return found;
  for (const addrinfo* at = lookup->request.ar_result; at != nullptr; at = at->ai_next) {
    IpAddress address;
    address.family = at->ai_family;
    if (at->ai_family == AF_INET) {
      std::memcpy(address.bytes.data(), &reinterpret_cast<const sockaddr_in*>(at->ai_addr)->sin_addr, 4);
    } else if (at->ai_family == AF_INET6) {
      std::memcpy(address.bytes.data(), &reinterpret_cast<const sockaddr_in6*>(at->ai_addr)->sin6_addr, 16);
    } else {
      continue;
    }
    found.push_back(address);
  }
  return found;
}

AddressBook::AddressBook(Resolve resolve, const Clock& clock)
    : resolve_(std::move(resolve)), clock_(clock), thread_([this](const std::stop_token& stop) {
        become_io_thread("stoker-names");
        run(stop);
      }) {}

AddressBook::~AddressBook() { stop(); }

void AddressBook::stop() {
  thread_.request_stop();
  if (thread_.joinable()) thread_.join();
}

void AddressBook::run(const std::stop_token& stop) {
  const auto next = [&]() STOKER_NO_ANALYSIS {
    return std::find_if(hosts_.begin(), hosts_.end(), [](const Host& host) { return host.is_wanted; });
  };
  while (!stop.stop_requested()) {
    Host* host = nullptr;  // stays where it is
    {
      MutexLock lock(mu_);
      wanted_.wait(lock, stop, [&]() STOKER_NO_ANALYSIS { return next() != hosts_.end(); });
      if (next() == hosts_.end()) return;
      host = &*next();
      host->is_wanted = false;
      host->looked_up_at = clock_.now();
    }
    const std::vector<IpAddress> found = resolve_(host->name, stop);  // the name never changes
    MutexLock lock(mu_);
    if (!found.empty()) merge(*host, found);  // a lookup that fails takes nothing away
  }
}

void AddressBook::merge(Host& host, const std::vector<IpAddress>& found) {
  for (Known& known : host.addresses) ++known.n_missed;
  for (const IpAddress& address : found) {
    const auto same = std::find_if(host.addresses.begin(), host.addresses.end(),
                                   [&](const Known& known) { return known.address == address; });
    if (same != host.addresses.end()) {
      same->n_missed = 0;
    } else if (host.addresses.size() < kMaxAddresses) {
      host.addresses.push_back({.address = address});
    }
  }
  std::erase_if(host.addresses, [](const Known& known) { return known.n_missed >= kKeptLookups; });
}

AddressBook::Host* AddressBook::find(std::string_view name) {
  const auto found = std::find_if(hosts_.begin(), hosts_.end(), [&](const Host& host) { return host.name == name; });
  if (found != hosts_.end()) return &*found;
  if (hosts_.size() == kMaxHosts) return nullptr;
  hosts_.push_back({.name = std::string(name)});
  return &hosts_.back();
}

AddressBook::Known* AddressBook::find(const Use& use) {
  if (use.host < 0) return nullptr;
  auto& addresses = hosts_[static_cast<std::size_t>(use.host)].addresses;
  const auto found = std::find_if(addresses.begin(), addresses.end(),
                                  [&](const Known& known) { return known.address == use.address; });
  return found == addresses.end() ? nullptr : &*found;
}

AddressBook::Use AddressBook::pick(std::string_view name, const IpAddress& offered) {
  MutexLock lock(mu_);
  Host* const host = find(name);
  if (host == nullptr) return {-1, offered};
  const Nanos now = clock_.now();
  if (!host->looked_up_at || now - *host->looked_up_at >= kRefresh) {
    host->is_wanted = true;
    wanted_.notify_all();
  }
  const auto is_avoided = [&](const Known& known) { return known.failed_at && now - *known.failed_at < kAvoid; };
  Known* best = nullptr;
  const std::size_t n = host->addresses.size();
  for (std::size_t i = 0; i < n; ++i) {
    Known& known = host->addresses[(host->turn + i) % n];
    if (known.address.family != offered.family) continue;
    if (best == nullptr || std::pair(is_avoided(known), known.n_open) < std::pair(is_avoided(*best), best->n_open)) {
      best = &known;
    }
  }
  if (best == nullptr) return {-1, offered};
  ++host->turn;
  ++best->n_open;
  const auto number = std::find_if(hosts_.begin(), hosts_.end(), [&](const Host& other) { return &other == host; });
  return {static_cast<int>(number - hosts_.begin()), best->address};
}

void AddressBook::failed(const Use& use) {
  MutexLock lock(mu_);
  if (Known* const known = find(use)) known->failed_at = clock_.now();
}

void AddressBook::release(const Use& use) {
  MutexLock lock(mu_);
  if (Known* const known = find(use)) --known->n_open;
}

}  // namespace stoker

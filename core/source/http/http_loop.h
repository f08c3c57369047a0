#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "base/clock.h"
#include "source/http/address_book.h"
#include "source/http/dialect.h"
#include "source/http/proxies.h"
#include "source/job.h"

namespace stoker {

struct HttpSettings {
  FetchTimeouts timeouts;
  std::uint64_t max_object_bytes = 0;
  std::string ca_file;  ///< empty: the system's
  bool verify_tls = true;
  bool http2 = false;
  Proxies proxies;
  /// Shared by copies: some object came with a Content-Encoding that has to be undone.
  std::shared_ptr<std::atomic<bool>> has_packed = std::make_shared<std::atomic<bool>>(false);
};

/// One thread that carries many HTTP requests at a time, see `Transfers`: connections and handles are used again.
class HttpLoop {
 public:
  /// Everything borrowed must outlive the loop. `worker` is its number at the owner, who calls `wake` when there is
  /// work.
  HttpLoop(JobOwner& owner, Dialect& s3, Dialect& plain, HttpSettings settings, AddressBook& book, const Clock& clock);
  ~HttpLoop();
  HttpLoop(const HttpLoop&) = delete;
  HttpLoop& operator=(const HttpLoop&) = delete;

  /// @return kInternal or FETCH_FD_LIMIT if the system refuses what a loop needs.
  Status start(int worker);
  /// Threads: any. Async-signal-cheap: one write.
  void wake();
  /// Every job in flight is settled with STOPPED; returns when the thread has ended.
  void stop();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace stoker

#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "exchange/store.h"

namespace stoker {

struct TcpStoreOptions {
  std::string host;                  ///< of rank 0: a name or an address
  std::vector<std::uint16_t> ports;  ///< where its service may be; tried in turn, the secret tells
  std::string secret;
  std::chrono::milliseconds meet_limit{600'000};  ///< for rank 0 to appear at first
  std::chrono::milliseconds lost_limit{2000};     ///< for it to come back later
};

/// Values in the service of rank 0 (tcp_server.h). Connects with the first call, and again when the connection breaks;
/// says in the log when rank 0 is not there for some seconds. One request at a time.
std::unique_ptr<ValueStore> make_tcp_store(TcpStoreOptions options);

/// Where the service of a job is looked for if nobody names a port: 16 ports from 20000 to 31999, from the job's name.
std::vector<std::uint16_t> ports_of_job(const std::string& job);

}  // namespace stoker

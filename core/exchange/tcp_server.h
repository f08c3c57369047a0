#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/result.h"

namespace stoker {

struct TcpServerOptions {
  std::string address = "0.0.0.0";                 ///< numeric, where it listens
  std::vector<std::uint16_t> ports;                ///< the first that is free is taken; 0: any
  std::string secret;                              ///< whoever does not know it is refused
  std::size_t max_bytes = std::size_t{256} << 20;  ///< of values
  std::size_t max_connections = 4096;
  std::chrono::milliseconds greeting_limit{5000};  ///< for a peer to show that it knows the secret
};

/// The exchange's service in the process of rank 0: one thread, values in memory. Bounded in connections, in bytes of
/// values and in bytes per message; a peer that does not know the job's secret gets 64 bytes of attention and is cut
/// off. A slow or silent peer holds up nobody.
class TcpServer {
 public:
  /// @return SETTINGS if no port is free.
  static Result<std::unique_ptr<TcpServer>> start(TcpServerOptions options);
  ~TcpServer();
  TcpServer(const TcpServer&) = delete;
  TcpServer& operator=(const TcpServer&) = delete;

  std::uint16_t port() const { return port_; }
  /// Values that it holds. Threads: any.
  std::size_t n_values() const;

 private:
  class Loop;
  TcpServer(std::unique_ptr<Loop> loop, std::uint16_t port);

  const std::unique_ptr<Loop> loop_;
  const std::uint16_t port_;
  std::jthread thread_;
};

}  // namespace stoker

#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "exchange/exchange.h"
#include "exchange/foreign_store.h"
#include "exchange/tcp_server.h"

namespace stoker {

enum class ExchangeKind : std::uint8_t {
  kNone,     ///< ranks tell each other nothing
  kDir,      ///< dir_store.h
  kTcp,      ///< tcp_store.h
  kForeign,  ///< foreign_store.h
};

struct ExchangeSettings {
  ExchangeKind kind = ExchangeKind::kDir;
  std::string job;                    ///< what the launcher calls this attempt of this job; empty: not known
  std::string host;                   ///< kTcp: where rank 0 is
  std::uint16_t port = 0;             ///< kTcp: 0: one of ports_of_job
  bool is_host = false;               ///< kTcp: this process runs the service
  std::string secret;                 ///< kTcp
  std::shared_ptr<KeyValues> values;  ///< kForeign
};

/// Starts the service of rank 0, if it runs in this process and is of the kind that has one: others find it while the
/// result lives. Loaders of one job share it. @return null elsewhere; SETTINGS.
Result<std::shared_ptr<TcpServer>> start_service(const ExchangeSettings& settings);

/// An exchange, and what of it ends with its owner.
struct OpenExchange {
  std::shared_ptr<TcpServer> server;  ///< of this process; null elsewhere
  std::unique_ptr<Exchange> exchange;
};

/// Opens an exchange of another kind than kNone. Does not wait for other ranks: the first call of the exchange does.
/// @param index_dir   kDir: values are in its folder "exchange".
/// @param space       What the ranks of one run have in common: [a-z0-9-].
/// @param owner       This rank, for people.
/// @param meet_limit  For rank 0 to appear.
/// @return SETTINGS, INDEX_DIR.
Result<OpenExchange> open_exchange(const ExchangeSettings& settings, const std::string& index_dir,
                                   const std::string& space, const std::string& owner,
                                   std::chrono::milliseconds meet_limit, const Clock& clock);

}  // namespace stoker

#include "exchange/open.h"

#include <map>
#include <utility>

#include "base/mutex.h"
#include "exchange/dir_store.h"
#include "exchange/tcp_store.h"

namespace stoker {
namespace {

bool is_loopback(const std::string& host) { return host == "localhost" || host.starts_with("127."); }

}  // namespace

// One for all loaders of a process in a job: they share a port, and ranks whose settings differ meet at it.
Result<std::shared_ptr<TcpServer>> start_service(const ExchangeSettings& settings) {
  if (settings.kind != ExchangeKind::kTcp || !settings.is_host) return std::shared_ptr<TcpServer>();
  static Mutex mu;
  static std::map<std::string, std::weak_ptr<TcpServer>> services;  // of jobs whose loaders live, and a few old names
  MutexLock lock(mu);
  std::weak_ptr<TcpServer>& known = services[settings.job + ' ' + std::to_string(settings.port)];
  if (auto running = known.lock()) return running;
  TcpServerOptions options;
  options.address = is_loopback(settings.host) ? "127.0.0.1" : "0.0.0.0";
  options.ports = settings.port != 0 ? std::vector{settings.port} : ports_of_job(settings.job);
  options.secret = settings.secret;
  STOKER_TRY(std::shared_ptr<TcpServer> server, TcpServer::start(std::move(options)));
  known = server;
  return server;
}

Result<OpenExchange> open_exchange(const ExchangeSettings& settings, const std::string& index_dir,
                                   const std::string& space, const std::string& owner,
                                   std::chrono::milliseconds meet_limit, const Clock& clock) {
  OpenExchange out;
  std::unique_ptr<ValueStore> store;
  switch (settings.kind) {
    case ExchangeKind::kNone:
      return Status(Reason::kInternal, "an exchange of the kind none");
    case ExchangeKind::kDir: {
      STOKER_TRY(store, open_dir_store(index_dir + "/exchange", index_dir + "/plans"));
      break;
    }
    case ExchangeKind::kTcp: {
      TcpStoreOptions options{.host = settings.host, .ports = {}, .secret = settings.secret, .meet_limit = meet_limit};
      options.ports = settings.port != 0 ? std::vector{settings.port} : ports_of_job(settings.job);
      if (settings.is_host) {
        STOKER_TRY(out.server, start_service(settings));
        options.host = is_loopback(settings.host) ? settings.host : "127.0.0.1";
        options.ports = {out.server->port()};
      }
      store = make_tcp_store(std::move(options));
      break;
    }
    case ExchangeKind::kForeign:
      store = make_foreign_store(settings.values);
      break;
  }
  out.exchange = std::make_unique<Exchange>(std::move(store), space, owner, clock);
  return out;
}

}  // namespace stoker

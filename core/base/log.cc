#include "base/log.h"

#include <memory>
#include <utility>

#include "base/mutex.h"

namespace stoker {
namespace {

struct Listener {
  Mutex mu;
  std::shared_ptr<const LogSink> sink STOKER_GUARDED_BY(mu);
};

Listener& listener() {
  static auto* const one = new Listener;  // lives to the end: threads may log while the process exits
  return *one;
}

}  // namespace

void log(LogLevel level, std::string_view line) {
  std::shared_ptr<const LogSink> sink;
  {
    Listener& l = listener();
    MutexLock lock(l.mu);
    sink = l.sink;
  }
  if (sink && *sink) (*sink)(level, line);
}

void set_log_sink(LogSink sink) {
  auto shared = std::make_shared<const LogSink>(std::move(sink));
  Listener& l = listener();
  MutexLock lock(l.mu);
  l.sink = std::move(shared);
}

}  // namespace stoker

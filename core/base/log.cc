#include "base/log.h"

#include <deque>
#include <iterator>
#include <memory>
#include <utility>

#include "base/mutex.h"

namespace stoker {
namespace {

constexpr std::size_t kMostKept = 256;

struct Listener {
  Mutex mu;
  std::shared_ptr<const LogSink> sink STOKER_GUARDED_BY(mu);
  std::deque<LogLine> kept STOKER_GUARDED_BY(mu);
  std::size_t n_lost STOKER_GUARDED_BY(mu) = 0;
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
    l.kept.push_back({level, std::string(line)});
    if (l.kept.size() > kMostKept) {
      l.kept.pop_front();
      ++l.n_lost;
    }
  }
  if (sink && *sink) (*sink)(level, line);
}

std::vector<LogLine> drain_log(std::size_t* n_lost) {
  Listener& l = listener();
  MutexLock lock(l.mu);
  std::vector<LogLine> lines(std::make_move_iterator(l.kept.begin()), std::make_move_iterator(l.kept.end()));
  l.kept.clear();
  if (n_lost != nullptr) *n_lost = l.n_lost;
  l.n_lost = 0;
  return lines;
}

void set_log_sink(LogSink sink) {
  auto shared = std::make_shared<const LogSink>(std::move(sink));
  Listener& l = listener();
  MutexLock lock(l.mu);
  l.sink = std::move(shared);
}

}  // namespace stoker

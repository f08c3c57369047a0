#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace stoker {

enum class LogLevel : unsigned char { kDebug, kInfo, kWarning, kError };

/// Hands one line to whoever listens, and keeps it for drain_log(). Never under a lock of
/// ours, never secrets. Threads: any. Does not block for long.
void log(LogLevel level, std::string_view line);

struct LogLine {
  LogLevel level = LogLevel::kInfo;
  std::string text;
};
/// Takes the lines since the last call, oldest first, at most 256: what Python asks for from its own thread, so that no
/// engine thread ever waits for the interpreter. `n_lost` gets how many older ones were dropped. Threads: any.
std::vector<LogLine> drain_log(std::size_t* n_lost = nullptr);

using LogSink = std::function<void(LogLevel, std::string_view)>;
/// Replaces the listener of the process; an empty function silences. Threads: any.
void set_log_sink(LogSink sink);

}  // namespace stoker

#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace stoker {

enum class LogLevel : unsigned char { kDebug, kInfo, kWarning, kError };

/// Hands one line to whoever listens (the Python side prints it); nothing listens by default. Never under a lock of
/// ours, never secrets. Threads: any. Does not block for long.
void log(LogLevel level, std::string_view line);

using LogSink = std::function<void(LogLevel, std::string_view)>;
/// Replaces the listener of the process; an empty function silences. Threads: any.
void set_log_sink(LogSink sink);

}  // namespace stoker

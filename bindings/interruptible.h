#pragma once

#include <nanobind/nanobind.h>

#include <chrono>
#include <condition_variable>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>

#include "base/mutex.h"
#include "base/result.h"

namespace stoker {

/// Runs `work(stop_token)` -> Result<T> on a thread of its own while this one comes back to the interpreter every tenth
/// of a second, so that Ctrl-C is heard although storage may be slow. Called with the interpreter's lock; `work` runs
/// without it and may take it.
/// @return What `work` returned. Throws the interpreter's exception (KeyboardInterrupt) once `work` has stopped.
template <typename Work>
auto run_interruptibly(Work work) -> decltype(work(std::stop_token())) {
  Mutex mu;
  std::condition_variable_any changed;
  std::optional<decltype(work(std::stop_token()))> result;
  bool is_interrupted = false;
  {
    std::jthread thread;
    {
      const nanobind::gil_scoped_release unlocked;
      thread = std::jthread([&](std::stop_token stop) {
        auto got = work(std::move(stop));
        MutexLock lock(mu);
        result.emplace(std::move(got));
        changed.notify_all();
      });
    }
    for (bool is_done = false; !is_done && !is_interrupted;) {
      {
        const nanobind::gil_scoped_release unlocked;
        MutexLock lock(mu);
        is_done = changed.wait_for(lock, std::chrono::milliseconds(100),
                                   [&]() STOKER_NO_ANALYSIS { return result.has_value(); });
      }
      is_interrupted = !is_done && PyErr_CheckSignals() != 0;
    }
    // The exception is set already and must survive what `work` does on its way out.
    PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
    if (is_interrupted) PyErr_Fetch(&type, &value, &trace);
    {
      const nanobind::gil_scoped_release unlocked;
      thread.request_stop();
      thread.join();
    }
    if (is_interrupted) PyErr_Restore(type, value, trace);
  }
  if (is_interrupted) throw nanobind::python_error();
  return std::move(*result);
}

}  // namespace stoker

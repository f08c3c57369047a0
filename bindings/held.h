#pragma once

#include <nanobind/nanobind.h>

#include <thread>
#include <utility>

namespace stoker {

/// A Python object that threads without the interpreter's lock may hold and drop.
class Held {
 public:
  explicit Held(nanobind::object object) : object_(std::move(object)) {}
  ~Held() {
    if (!Py_IsInitialized()) {
      (void)object_.release();  // nothing to give it back to
      return;
    }
    const nanobind::gil_scoped_acquire lock;
    object_.reset();
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  const nanobind::object& get() const { return object_; }

 private:
  nanobind::object object_;
};

/// Whoever joins may hold the interpreter's lock, which the thread needs to come back.
inline void join_unlocked(std::jthread& thread) {
  if (Py_IsInitialized() && PyGILState_Check()) {
    const nanobind::gil_scoped_release unlocked;
    thread.join();
  } else {
    thread.join();
  }
}

}  // namespace stoker

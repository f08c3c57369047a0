#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <span>
#include <string_view>
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

/// The bytes of a Python object, read where they lie; threads without the interpreter's lock may hold and drop it.
class HeldBuffer {
 public:
  /// With the lock. Throws BufferError for an object that has no contiguous bytes.
  explicit HeldBuffer(nanobind::handle object) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) != 0) throw nanobind::python_error();
  }
  ~HeldBuffer() {
    if (!Py_IsInitialized()) return;
    const nanobind::gil_scoped_acquire lock;
    PyBuffer_Release(&view_);
  }
  HeldBuffer(const HeldBuffer&) = delete;
  HeldBuffer& operator=(const HeldBuffer&) = delete;

  std::span<const std::byte> bytes() const {
    return {static_cast<const std::byte*>(view_.buf), static_cast<std::size_t>(view_.len)};
  }
  std::string_view text() const { return {static_cast<const char*>(view_.buf), static_cast<std::size_t>(view_.len)}; }

 private:
  Py_buffer view_{};
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

#include "user_code.h"

#include <fmt/format.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <utility>

#include "array_of.h"
#include "base/clock.h"

namespace nb = nanobind;

namespace stoker {
namespace {

using Given = nb::ndarray<const std::uint8_t, nb::shape<-1, -1, 3>, nb::c_contig, nb::device::cpu>;

/// "ValueError: no colour (clean.py, line 12)". Called with the interpreter's lock.
std::string text_of(nb::python_error& error) {
  std::string text = "an exception";
  try {
    text = nb::cast<std::string>(error.type().attr("__qualname__"));
    try {
      const auto what = nb::cast<std::string>(nb::str(error.value()));
      if (!what.empty()) text += ": " + what;
    } catch (nb::python_error&) {
      text += ": its text cannot be had";
    }
    nb::object trace = nb::borrow(error.traceback());
    while (trace.is_valid() && !trace.is_none() && !trace.attr("tb_next").is_none()) trace = trace.attr("tb_next");
    if (trace.is_valid() && !trace.is_none()) {
      text += fmt::format(" ({}, line {})",
                          nb::cast<std::string>(trace.attr("tb_frame").attr("f_code").attr("co_filename")),
                          nb::cast<int>(trace.attr("tb_lineno")));
    }
  } catch (...) {
    PyErr_Clear();  // an exception that cannot even be shown
  }
  return text;
}

class PythonCode final : public UserCode {
 public:
  PythonCode(std::string identity, nb::object row, nb::object size, nb::object picture)
      : identity_(std::move(identity)), row_(row.release()), size_(size.release()), picture_(picture.release()) {}
  ~PythonCode() override {
    if (!Py_IsInitialized()) return;  // the objects went with the interpreter
    const nb::gil_scoped_acquire locked;
    row_.dec_ref();
    size_.dec_ref();
    picture_.dec_ref();
  }
  PythonCode(const PythonCode&) = delete;
  PythonCode& operator=(const PythonCode&) = delete;

  std::string identity() const override { return identity_; }
  bool has_row() const override { return !row_.is_none(); }
  bool has_picture() const override { return !picture_.is_none(); }

  Result<std::string> row(std::string_view line) override {
    return called<std::string>([&]() -> Result<std::string> {
      const nb::object out = row_(nb::bytes(line.data(), line.size()));
      const auto bytes = nb::cast<nb::bytes>(out);
      return std::string(bytes.c_str(), bytes.size());
    });
  }

  Result<qwen_vl::SizePx> size(qwen_vl::SizePx upright) override {
    if (size_.is_none()) return upright;
    return called<qwen_vl::SizePx>([&]() -> Result<qwen_vl::SizePx> {
      const auto out = nb::cast<nb::tuple>(size_(upright.height, upright.width));
      return qwen_vl::SizePx{nb::cast<int>(out[0]), nb::cast<int>(out[1])};
    });
  }

  Result<RgbImage> picture(RgbImage picture) override {
    return called<RgbImage>([&]() -> Result<RgbImage> {
      const nb::object out = picture_(array_of(std::move(picture)).cast());
      const Given given = nb::cast<Given>(out);
      RgbImage made{.height_px = static_cast<int>(given.shape(0)), .width_px = static_cast<int>(given.shape(1))};
      made.pixels.assign(given.data(), given.data() + given.size());
      return made;
    });
  }

  void cancel() override {
    is_cancelled_ = true;
    if (!Py_IsInitialized()) return;
    const nb::gil_scoped_acquire locked;
    // Raised in their Python code; code that blocks outside the interpreter ends when it comes back.
    for (const unsigned long thread : inside_) PyThreadState_SetAsyncExc(thread, PyExc_SystemExit);
  }

 private:
  /// Runs `call` with the interpreter's lock; exceptions become USER_CODE.
  template <typename T, typename Call>
  Result<T> called(Call call) {
    const Clock& clock = Clock::real();
    if (is_cancelled_) return Status(Reason::kStopped, "the loader was closed");
    const Nanos asked = clock.now();
    const nb::gil_scoped_acquire locked;
    if (is_cancelled_) return Status(Reason::kStopped, "the loader was closed");
    const Nanos began = clock.now();
    clock_.wait_in_ns.add((began - asked).count());
    const unsigned long self = PyThread_get_thread_ident();
    inside_.insert(self);
    Result<T> out = [&]() -> Result<T> {
      try {
        return call();
      } catch (nb::python_error& error) {
        return Status(Reason::kUserCode, text_of(error));
      } catch (const std::exception& error) {  // nanobind's casts
        return Status(Reason::kUserCode, error.what());
      }
    }();
    inside_.erase(self);
    clock_.busy_ns.add((clock.now() - began).count());
    clock_.items.add(1);
    if (is_cancelled_) return Status(Reason::kStopped, "the loader was closed");
    return out;
  }

  const std::string identity_;
  nb::handle row_, size_, picture_;  // owned; let go with the interpreter's lock
  std::atomic<bool> is_cancelled_{false};
  std::multiset<unsigned long> inside_;  // threads in the user's code; under the interpreter's lock
};

}  // namespace

std::shared_ptr<UserCode> make_user_code(std::string identity, nb::object row, nb::object size, nb::object picture) {
  return std::make_shared<PythonCode>(std::move(identity), std::move(row), std::move(size), std::move(picture));
}

}  // namespace stoker

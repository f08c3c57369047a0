#include "key_source.h"

#include <nanobind/stl/function.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <chrono>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

namespace nb = nanobind;

namespace stoker {
namespace {

using Answer = std::tuple<std::string, std::string, std::string, std::optional<double>, std::string>;

class PythonKeySource final : public KeySource {
 public:
  explicit PythonKeySource(nb::callable ask) : ask_(ask.release()) {}
  ~PythonKeySource() override {
    if (!Py_IsInitialized()) return;  // the object went with the interpreter
    const nb::gil_scoped_acquire locked;
    ask_.dec_ref();
  }
  PythonKeySource(const PythonKeySource&) = delete;
  PythonKeySource& operator=(const PythonKeySource&) = delete;

  Result<SourcedKeys> get(bool afresh, std::stop_token stop) override {
    const nb::gil_scoped_acquire locked;
    if (stop.stop_requested()) return Status(Reason::kStopped, "no longer wanted");
    try {
      auto [id, secret, token, valid_for_s, provider] =
          nb::cast<Answer>(ask_(afresh, nb::cpp_function([stop] { return stop.stop_requested(); })));
      SourcedKeys got{{std::move(id), std::move(secret), std::move(token)}, std::nullopt, std::move(provider)};
      if (valid_for_s) {
        constexpr double kYear = 365.0 * 86400;  // nanoseconds would overflow after 292
        got.valid_for = std::chrono::duration_cast<Nanos>(std::chrono::duration<double>(std::min(*valid_for_s, kYear)));
      }
      return got;
    } catch (nb::python_error& error) {
      const nb::object message = nb::getattr(error.value(), "message", nb::str("an exception"));
      return Status(Reason::kFetchCredentials, nb::cast<std::string>(nb::str(message)));
    } catch (const std::exception& error) {  // nanobind's casts
      return Status(Reason::kFetchCredentials, error.what());
    }
  }

  // Whoever ends a fetcher may hold the interpreter's lock, which the thread needs to come back.
  void join(std::jthread& thread) override {
    if (Py_IsInitialized() && PyGILState_Check()) {
      const nb::gil_scoped_release unlocked;
      thread.join();
    } else {
      thread.join();
    }
  }

 private:
  const nb::handle ask_;  // owned; let go with the interpreter's lock
};

}  // namespace

std::shared_ptr<KeySource> make_key_source(nb::callable ask) {
  return std::make_shared<PythonKeySource>(std::move(ask));
}

}  // namespace stoker

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

#include "held.h"

namespace nb = nanobind;

namespace stoker {
namespace {

using Answer = std::tuple<std::string, std::string, std::string, std::optional<double>, std::string>;

class PythonKeySource final : public KeySource {
 public:
  explicit PythonKeySource(nb::callable ask) : ask_(std::move(ask)) {}

  Result<SourcedKeys> get(bool afresh, std::stop_token stop) override {
    const nb::gil_scoped_acquire locked;
    if (stop.stop_requested()) return Status(Reason::kStopped, "no longer wanted");
    try {
      auto [id, secret, token, valid_for_s, provider] =
          nb::cast<Answer>(ask_.get()(afresh, nb::cpp_function([stop] { return stop.stop_requested(); })));
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

  void join(std::jthread& thread) override { join_unlocked(thread); }

 private:
  const Held ask_;
};

}  // namespace

std::shared_ptr<KeySource> make_key_source(nb::callable ask) {
  return std::make_shared<PythonKeySource>(std::move(ask));
}

}  // namespace stoker

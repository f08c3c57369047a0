#include "key_values.h"

#include <nanobind/stl/string.h>

#include <string>
#include <utility>

#include "held.h"

namespace nb = nanobind;

namespace stoker {
namespace {

class PythonKeyValues final : public KeyValues {
 public:
  explicit PythonKeyValues(nb::object store) : store_(std::move(store)) {}

  Result<std::string> compare_set(const std::string& key, const std::string& expected,
                                  const std::string& desired) override {
    const nb::gil_scoped_acquire locked;
    try {
      const auto bytes = nb::cast<nb::bytes>(store_.get().attr("compare_set")(
          key, nb::bytes(expected.data(), expected.size()), nb::bytes(desired.data(), desired.size())));
      return std::string(bytes.c_str(), bytes.size());
    } catch (nb::python_error& error) {
      return failed(nb::cast<std::string>(nb::str(error.value())));
    } catch (const std::exception& error) {  // nanobind's casts
      return failed(error.what());
    }
  }

  Status erase(const std::string& key) override {
    const nb::gil_scoped_acquire locked;
    try {
      store_.get().attr("erase")(key);
      return {};
    } catch (nb::python_error& error) {
      return failed(nb::cast<std::string>(nb::str(error.value())));
    }
  }

  void join(std::jthread& thread) override { join_unlocked(thread); }

  std::string describe() const override { return "torch.distributed's store"; }

 private:
  static Status failed(const std::string& what) {
    return Status(Reason::kFetchConnect, "torch.distributed's store: " + what.substr(0, 300));
  }
  const Held store_;
};

}  // namespace

std::shared_ptr<KeyValues> make_key_values(nb::object store) {
  return std::make_shared<PythonKeyValues>(std::move(store));
}

}  // namespace stoker

#include "key_values.h"

#include <nanobind/stl/string.h>

#include <string>
#include <utility>

namespace nb = nanobind;

namespace stoker {
namespace {

class PythonKeyValues final : public KeyValues {
 public:
  explicit PythonKeyValues(nb::object store) : store_(store.release()) {}
  ~PythonKeyValues() override {
    if (!Py_IsInitialized()) return;  // the object went with the interpreter
    const nb::gil_scoped_acquire locked;
    store_.dec_ref();
  }
  PythonKeyValues(const PythonKeyValues&) = delete;
  PythonKeyValues& operator=(const PythonKeyValues&) = delete;

  Result<std::string> compare_set(const std::string& key, const std::string& expected,
                                  const std::string& desired) override {
    const nb::gil_scoped_acquire locked;
    try {
      const auto bytes = nb::cast<nb::bytes>(store_.attr("compare_set")(
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
      store_.attr("erase")(key);
      return {};
    } catch (nb::python_error& error) {
      return failed(nb::cast<std::string>(nb::str(error.value())));
    }
  }

  // Whoever ends an exchange may hold the interpreter's lock, which the thread needs to come back.
  void join(std::jthread& thread) override {
    if (Py_IsInitialized() && PyGILState_Check()) {
      const nb::gil_scoped_release unlocked;
      thread.join();
    } else {
      thread.join();
    }
  }

  std::string describe() const override { return "torch.distributed's store"; }

 private:
  static Status failed(const std::string& what) {
    return Status(Reason::kFetchConnect, "torch.distributed's store: " + what.substr(0, 300));
  }
  const nb::handle store_;  // owned; let go with the interpreter's lock
};

}  // namespace

std::shared_ptr<KeyValues> make_key_values(nb::object store) {
  return std::make_shared<PythonKeyValues>(std::move(store));
}

}  // namespace stoker

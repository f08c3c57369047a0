#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <string>
#include <tuple>
#include <vector>

#include "bind.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace stoker {
namespace {

const char* class_for(Code code) {
  switch (code) {
    case Code::kInvalidArgument:
      return "InvalidArgumentError";
    case Code::kBadSample:
      return "BadSampleError";
    case Code::kUnavailable:
      return "UnavailableError";
    case Code::kExhausted:
      return "ExhaustedError";
    case Code::kCancelled:
      return "CancelledError";
    case Code::kOk:
    case Code::kInternal:
      break;
  }
  return "InternalError";
}

const char* action_name(Code code) {
  static constexpr std::array<const char*, 7> kNames = {"ok",        "invalid_argument", "bad_sample", "unavailable",
                                                        "exhausted", "cancelled",        "internal"};
  return kNames[static_cast<std::size_t>(code)];
}

}  // namespace

void throw_status(const Status& status) {
  // The classes live in Python (stoker/errors.py), so that they pickle and carry docstrings; a bare `_core` falls back
  // to RuntimeError.
  const std::string code(name_of(status.reason()));
  nb::object raised;
  try {
    raised = nb::module_::import_("stoker.errors").attr(class_for(status.code()))(status.message(), code);
  } catch (nb::python_error&) {
    throw std::runtime_error(status.to_string());
  }
  PyErr_SetObject(raised.type().ptr(), raised.ptr());
  throw nb::python_error();
}

void bind_status(nb::module_& m) {
  m.def(
      "reasons",
      [] {
        std::vector<std::tuple<std::string, std::string, std::string>> rows;
        for (int i = 1; i < kNumReasons; ++i) {
          const auto reason = static_cast<Reason>(i);
          rows.emplace_back(name_of(reason), action_name(action_of(reason)), text_of(reason));
        }
        return rows;
      },
      "Every code that an error or a ledger line can carry: [(name, action, sentence)].");
  m.def("set_leak_warnings", &nb::set_leak_warnings, "is_on"_a,
        "Whether objects of this module that outlive the interpreter are reported on stderr.");
}

}  // namespace stoker

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "bind.h"
#include "engine/hand_over.h"
#include "held.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace stoker {
namespace {

std::string_view text_of(const nb::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }

Status status_of(const std::string& code, std::string message) {
  const auto reason = reason_named(code);
  if (!reason || *reason == Reason::kNone) return {Reason::kInternal, code + ": " + message};
  return {*reason, std::move(message)};
}

void put(HandOver& self, const nb::bytes& delivery, nb::handle pixels, nb::handle tail) {
  const auto held = std::make_shared<const HeldBuffer>(pixels);
  const HeldBuffer rest(tail);
  const Status status = [&] {
    nb::gil_scoped_release unlocked;
    return self.put(text_of(delivery), block_over(held->bytes(), held), rest.text());
  }();
  check_or_throw(status);
}

}  // namespace

void bind_hand_over(nb::module_& m) {
  nb::class_<HandOver>(
      m, "CoreHandOver",
      "What passes between a loader and the client that brings its batches from elsewhere. Any "
      "thread may call; none blocks longer than its timeout, and after the loader's close() none does.")
      .def_static("create", [] { return std::make_shared<HandOver>(); })
      .def("say", &HandOver::say, "line"_a, nb::call_guard<nb::gil_scoped_release>(),
           "What is being done, or why nothing comes; empty: nothing to say.")
      .def(
          "welcome", [](HandOver& self, const nb::bytes& message) { check_or_throw(self.welcome(text_of(message))); },
          "message"_a, "The run is open; what a coordinator's welcome() gave.")
      .def(
          "fail",
          [](HandOver& self, const std::string& code, std::string message) {
            self.fail(status_of(code, std::move(message)));
          },
          "code"_a, "message"_a, "The run ends now, also for packs that were not taken; the first call counts.")
      .def(
          "start_within",
          [](HandOver& self, int milliseconds) { return self.start_within(std::chrono::milliseconds(milliseconds)); },
          "ms"_a, nb::call_guard<nb::gil_scoped_release>(),
          "Where the run starts, once the trainer has asked for its first batch, or None.")
      .def(
          "wanted_within",
          [](HandOver& self, std::int64_t beyond_step, int milliseconds) {
            return self.wanted_within(beyond_step, std::chrono::milliseconds(milliseconds));
          },
          "beyond_step"_a, "ms"_a, nb::call_guard<nb::gil_scoped_release>(),
          "The step that the trainer wants, once it is beyond that one, or None.")
      .def("put", &put, "delivery"_a, "pixels"_a, "tail"_a,
           "The next pack: what a coordinator's deliver() gave, and a pack worker's two contiguous buffers. The "
           "pixels are not copied, and their owner is kept until the last array of them is gone. STOPPED once "
           "nothing is taken any more; PEER_MISMATCH for what is not whole or out of turn, and then nothing is "
           "put.")
      .def(
          "end", [](HandOver& self, const nb::bytes& message) { check_or_throw(self.end(text_of(message))); },
          "message"_a, "Nothing comes after what was put; what a coordinator's end() gave.")
      .def_prop_ro("is_closed", &HandOver::is_closed, "The loader takes nothing any more.")
      .def_prop_ro("held_bytes", &HandOver::held_bytes, "Of packs that were put and whose arrays are not all gone.")
      .def_prop_ro("n_unread", &HandOver::n_unread, "Packs that the trainer has not taken.")
      .def_prop_ro(
          "waited_s", [](const HandOver& self) { return to_seconds(self.waited()); },
          "For how long the trainer has waited for packs in all, a wait that goes on included.");
}

}  // namespace stoker

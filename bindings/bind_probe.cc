#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bind.h"
#include "engine/prober.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace stoker {
namespace {

nb::dict objects_dict(const ProbeObjects& o) {
  nb::dict out;
  out["objects"] = o.n_objects;
  out["are_parts"] = o.are_parts;
  out["are_local"] = o.are_local;
  out["rows"] = o.n_rows;
  out["media"] = o.n_media;
  out["inline"] = o.n_inline;
  out["sized"] = o.n_sized;
  return out;
}

nb::dict phase_dict(const ProbePhase& p) {
  nb::dict out;
  out["concurrency"] = p.concurrency;
  out["elapsed_s"] = p.elapsed_s;
  out["answers"] = p.n_answers;
  out["bytes"] = p.n_bytes;
  out["cpu_s"] = p.cpu_s;
  out["whole_s"] = p.whole_s;
  out["requests"] = p.n_requests;
  out["repeated"] = p.n_repeated;
  out["unanswered"] = p.n_unanswered;
  out["throttled"] = p.n_throttled;
  out["limit"] = p.limit;
  nb::dict failed;
  for (const auto& [reason, n] : p.failed_tries) failed[str_of(name_of(reason))] = n;
  out["failed_tries"] = failed;
  out["first_byte_s"] = p.first_byte_s;
  out["took_s"] = p.took_s;
  out["object_bytes"] = p.bytes;
  return out;
}

Nanos nanos_of(double seconds) {
  return std::chrono::duration_cast<Nanos>(std::chrono::duration<double>(std::min(std::max(seconds, 0.0), 1e6)));
}

}  // namespace

void bind_probe(nb::module_& m) {
  nb::class_<Prober>(m, "CoreProber")
      .def_static(
          "create",
          [](const LoaderSettings& settings, std::vector<std::string> urls, int max_concurrency) {
            ProbeOptions options{.urls = std::move(urls), .max_concurrency = max_concurrency};
            auto made = [&] {
              const nb::gil_scoped_release unlocked;
              return Prober::create(settings, std::move(options));
            }();
            return value_or_throw(std::move(made));
          },
          "settings"_a, "urls"_a, "max_concurrency"_a)
      .def(
          "open_within",
          [](Prober& self, int milliseconds) {
            auto opened = [&] {
              const nb::gil_scoped_release unlocked;
              return self.open_within(std::chrono::milliseconds(milliseconds));
            }();
            return value_or_throw(std::move(opened));
          },
          "milliseconds"_a)
      .def("objects", [](const Prober& self) { return objects_dict(self.objects()); })
      .def("storage", &Prober::storage)
      .def("progress", &Prober::progress)
      .def(
          "begin_phase",
          [](Prober& self, int concurrency, double lasts_s, double patience_s) {
            const nb::gil_scoped_release unlocked;
            self.begin_phase(concurrency, nanos_of(lasts_s), nanos_of(patience_s));
          },
          "concurrency"_a, "lasts_s"_a, "patience_s"_a)
      .def(
          "phase_within",
          [](Prober& self, int milliseconds) -> std::optional<nb::dict> {
            auto phase = [&] {
              const nb::gil_scoped_release unlocked;
              return self.phase_within(std::chrono::milliseconds(milliseconds));
            }();
            const std::optional<ProbePhase> ended = value_or_throw(std::move(phase));
            if (!ended) return std::nullopt;
            return phase_dict(*ended);
          },
          "milliseconds"_a, "What the phase measured, or None if it has not ended in that time.")
      .def(
          "end_phase",
          [](Prober& self) {
            const ProbePhase phase = [&] {
              const nb::gil_scoped_release unlocked;
              return self.end_phase();
            }();
            return phase_dict(phase);
          },
          "Ends the phase at once: what it measured so far.")
      .def("stop", &Prober::stop, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace stoker

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "bind.h"
#include "engine/coordinator.h"
#include "engine/pack_worker.h"
#include "pipeline_dict.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace stoker {
namespace {

using Pixels = nb::ndarray<nb::numpy, const std::uint8_t, nb::ndim<1>, nb::c_contig>;

nb::bytes bytes_of(std::string_view bytes) { return nb::bytes(bytes.data(), bytes.size()); }
std::string_view view_of(const nb::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }

/// What a call without the interpreter's lock returns. Python objects are made after it.
template <typename Call>
auto unlocked(Call call) {
  const nb::gil_scoped_release released;
  return call();
}

/// A read-only view; it keeps the pack's block.
Pixels pixels_array(const MadePack& made) {
  const std::span<const std::byte> pixels = made.pixels();
  auto keep = std::make_unique<std::shared_ptr<const Block>>(made.batch.block);
  const nb::capsule owner(keep.release(),
                          [](void* p) noexcept { delete static_cast<std::shared_ptr<const Block>*>(p); });
  return {reinterpret_cast<const std::uint8_t*>(pixels.data()), {pixels.size()}, owner};
}

nb::dict report_of(const CoordinatorReport& r) {
  nb::dict d;
  d["packs_handed_out"] = r.packs_handed_out;
  d["packs_delivered"] = r.packs_delivered;
  d["message_bytes"] = r.message_bytes;
  d["samples"] = r.samples;
  d["tokens"] = r.tokens;
  d["target_tokens"] = r.target_tokens;
  d["patches"] = r.patches;
  d["video_patches"] = r.video_patches;
  d["bytes"] = r.bytes;
  d["bad_samples"] = bad_dict(r.bad);
  d["pipeline"] = r.pipeline ? nb::object(pipeline_dict(*r.pipeline)) : nb::none();
  return d;
}

nb::dict report_of(const WorkerReport& r) {
  nb::dict d;
  d["packs_made"] = r.packs_made;
  d["packs_tried"] = r.packs_tried;
  d["packs_failed"] = r.packs_failed;
  d["making"] = r.n_making;
  d["bytes"] = r.bytes;
  d["pipeline"] = pipeline_dict(r.pipeline);
  return d;
}

template <typename Engine>
nb::class_<Engine> bind_engine(nb::module_& m, const char* name, const char* doc) {
  return nb::class_<Engine>(m, name, doc)
      .def_static(
          "create", [](const LoaderSettings& s) { return value_or_throw(Engine::create(s)); }, "settings"_a,
          "Begins to open model and manifests on a thread.")
      .def(
          "open_within",
          [](Engine& self, int milliseconds) {
            return value_or_throw(unlocked([&] { return self.open_within(std::chrono::milliseconds(milliseconds)); }));
          },
          "milliseconds"_a)
      .def("progress", &Engine::progress)
      .def_prop_ro("fingerprint", [](const Engine& self) { return value_or_throw(self.fingerprint()); })
      .def("report", [](const Engine& self) { return report_of(unlocked([&] { return self.report(); })); })
      .def("close", &Engine::close, nb::call_guard<nb::gil_scoped_release>());
}

void bind_coordinator(nb::module_& m) {
  nb::class_<TaskInfo>(m, "TaskInfo", "A pack that a worker is to make.")
      .def_ro("sequence", &TaskInfo::sequence)
      .def_ro("rank", &TaskInfo::rank)
      .def_ro("step", &TaskInfo::step)
      .def_ro("micro_batch", &TaskInfo::micro_batch)
      .def_ro("micro_batches_in_step", &TaskInfo::micro_batches_in_step)
      .def_ro("is_last_of_step", &TaskInfo::is_last_of_step)
      .def_ro("n_bytes", &TaskInfo::n_bytes)
      .def_ro("n_samples", &TaskInfo::n_samples)
      .def_ro("cost", &TaskInfo::cost)
      .def_prop_ro("message", [](const TaskInfo& t) { return bytes_of(t.message); });
  bind_engine<Coordinator>(m, "CoreCoordinator", "Plans for all ranks of a run and keeps its books.")
      .def("welcome", [](const Coordinator& self) { return bytes_of(value_or_throw(self.welcome())); })
      .def(
          "start",
          [](Coordinator& self, const LoaderState& state, const std::vector<std::string>& accepted) {
            check_or_throw(unlocked([&] { return self.start(state, accepted); }));
          },
          "state"_a, "accepted"_a)
      .def(
          "want_step", [](Coordinator& self, std::int64_t step) { check_or_throw(self.want_step(step)); }, "step"_a)
      .def(
          "next_task_within",
          [](Coordinator& self, int milliseconds) {
            return value_or_throw(
                unlocked([&] { return self.next_task_within(std::chrono::milliseconds(milliseconds)); }));
          },
          "milliseconds"_a, "The next pack in plan order, or None if none came in time or all were handed out.")
      .def_prop_ro("is_at_end", &Coordinator::is_at_end)
      .def(
          "deliver",
          [](Coordinator& self, std::uint64_t sequence, const nb::bytes& made) {
            return bytes_of(value_or_throw(unlocked([&] { return self.deliver(sequence, view_of(made)); })));
          },
          "sequence"_a, "made"_a, "In each rank's order. What the rank is told.")
      .def("forget_lengths", &Coordinator::forget_lengths, "sequence"_a, nb::call_guard<nb::gil_scoped_release>(),
           "No worker can make that pack, PLAN_MISMATCH: a later run measures its samples anew.")
      .def(
          "end", [](Coordinator& self) { return bytes_of(value_or_throw(unlocked([&] { return self.end(); }))); },
          "What a rank is told after its last pack.")
      .def(
          "describe",
          [](const Coordinator& self, std::int64_t id) {
            const SampleOrigin o = value_or_throw(unlocked([&] { return self.describe(id); }));
            return std::make_tuple(o.pass, o.manifest, o.line, o.byte_offset, o.media);
          },
          "sample_id"_a);
}

void bind_worker(nb::module_& m) {
  nb::class_<MadePack>(m, "MadePack", "A finished pack on its way to its rank.")
      .def_prop_ro("made", [](const MadePack& p) { return bytes_of(p.made); })
      // Its owner is in the array; a property's own policy would name this object in its place.
      .def_prop_ro("pixels", &pixels_array, nb::rv_policy::reference)
      .def_prop_ro("tail", [](const MadePack& p) { return bytes_of(p.tail); })
      .def_prop_ro("n_bytes", &MadePack::n_bytes);
  bind_engine<PackWorker>(m, "CorePackWorker", "Makes packs that a coordinator has planned.")
      .def(
          "make",
          [](PackWorker& self, const nb::bytes& message, const std::vector<std::uint32_t>& rejected, std::int64_t only,
             const std::string& why_rejected) {
            return value_or_throw(unlocked([&] {
              MakeOptions options{.rejected = rejected, .why_rejected = why_rejected};
              if (only >= 0) options.only = static_cast<std::uint32_t>(std::min<std::int64_t>(only, UINT32_MAX));
              return self.make(view_of(message), options);
            }));
          },
          "message"_a, "rejected"_a = std::vector<std::uint32_t>(), "only"_a = -1, "why_rejected"_a = "",
          "Makes a pack; several threads may. `rejected` members are given up, `only` tries one and gives no payload.");
}

}  // namespace

void bind_remote(nb::module_& m) {
  bind_coordinator(m);
  bind_worker(m);
}

}  // namespace stoker

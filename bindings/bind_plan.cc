#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bind.h"
#include "pack_options.h"
#include "plan/chunk_order.h"
#include "plan/cost.h"
#include "plan/order.h"
#include "plan/plan.h"
#include "plan/step.h"

namespace nb = nanobind;

namespace stoker {
namespace {

// (n, 8): order_index, tokens, target_tokens, patches, images, videos, cost_language, cost_vision; a sample without a
// token is unusable.
using SampleTable = nb::ndarray<const std::int64_t, nb::shape<-1, 8>, nb::c_contig, nb::device::cpu>;

std::vector<PlanSample> samples_of(const SampleTable& table) {
  std::vector<PlanSample> samples(table.shape(0));
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const std::int64_t* row = table.data() + i * 8;
    samples[i] = {.order_index = static_cast<std::uint64_t>(row[0]),
                  .tokens = row[1],
                  .target_tokens = row[2],
                  .patches = row[3],
                  .images = static_cast<std::int32_t>(row[4]),
                  .videos = static_cast<std::int32_t>(row[5]),
                  .cost_language = row[6],
                  .cost_vision = row[7],
                  .usable = row[1] > 0};
  }
  return samples;
}

nb::dict state_to_dict(const PlanState& state) {
  nb::dict out;
  out["step"] = state.step;
  out["window"] = state.window;
  out["packs_delivered"] = state.packs_delivered;
  out["window_digest"] = state.window_digest;
  return out;
}

PlanState state_of(const nb::dict& state) {
  return {nb::cast<std::uint64_t>(state["step"]), nb::cast<std::uint64_t>(state["window"]),
          nb::cast<std::uint64_t>(state["packs_delivered"]), nb::cast<std::string>(state["window_digest"])};
}

nb::dict step_to_dict(const StepPlan& step, std::int32_t dp_size) {
  nb::list packs;  // (window, pack), None for a dummy
  for (const StepPack& pack : step.packs) {
    if (pack.is_dummy()) {
      packs.append(nb::none());
    } else {
      packs.append(nb::make_tuple(pack.window->window, pack.pack));
    }
  }
  nb::list ranks;
  for (std::int32_t rank = 0; rank < dp_size; ++rank) ranks.append(step.micro_batches_of(rank, dp_size));
  nb::dict out;
  out["step"] = step.step();
  out["packs"] = packs;
  out["ranks"] = ranks;
  out["before"] = state_to_dict(step.before);
  out["after"] = state_to_dict(step.after);
  out["target_tokens"] = step.target_tokens;
  return out;
}

void bind_order(nb::module_& m) {
  nb::class_<Order>(m, "Order")
      .def_static(
          "make",
          [](const std::vector<std::pair<std::string, std::uint64_t>>& sources, std::uint64_t seed, bool shuffle,
             std::optional<std::uint64_t> epochs, const std::vector<std::pair<std::size_t, std::uint64_t>>& mixture) {
            std::vector<SourceRows> rows;
            for (const auto& [fingerprint, n_rows] : sources) rows.push_back({fingerprint, n_rows});
            std::vector<MixtureEntry> entries;
            for (const auto& [n_sources, n_samples] : mixture) entries.push_back({n_sources, n_samples});
            return value_or_throw(
                Order::make(std::move(rows), seed, shuffle ? Shuffle::kRows : Shuffle::kNone, epochs, entries));
          },
          nb::arg("sources"), nb::kw_only(), nb::arg("seed"), nb::arg("shuffle") = true, nb::arg("epochs") = nb::none(),
          nb::arg("mixture") = std::vector<std::pair<std::size_t, std::uint64_t>>(),
          "sources: [(fingerprint, rows)]. mixture: [(sources, samples in an epoch)].")
      .def(
          "at",
          [](const Order& self, std::uint64_t position) {
            if (self.size() && position >= *self.size()) throw nb::index_error("position");
            const OrderEntry entry = self.at(position);
            return nb::make_tuple(entry.pass, entry.source, entry.row);
          },
          nb::arg("position"), "(pass, source, row).")
      .def_prop_ro("size", &Order::size)
      .def_prop_ro("rows_per_pass", &Order::rows_per_pass);
}

void bind_chunk_order(nb::module_& m) {
  nb::class_<ChunkOrder>(m, "ChunkOrder")
      .def_static(
          "make",
          [](const std::vector<std::tuple<std::string, std::uint64_t, std::uint64_t>>& sources, std::uint64_t seed,
             std::uint64_t chunk_bytes, std::uint64_t chunks_per_group, std::uint64_t window_samples,
             std::optional<std::uint64_t> epochs) {
            std::vector<SourceBytes> each;
            for (const auto& [fingerprint, n_bytes, n_rows] : sources) each.push_back({fingerprint, n_bytes, n_rows});
            return value_or_throw(
                ChunkOrder::make(each, seed, {chunk_bytes, chunks_per_group}, window_samples, epochs));
          },
          nb::arg("sources"), nb::kw_only(), nb::arg("seed"), nb::arg("chunk_bytes"), nb::arg("chunks_per_group"),
          nb::arg("window_samples"), nb::arg("epochs") = nb::none(),
          "sources: [(fingerprint, bytes, about how many rows)].")
      .def_prop_ro("n_windows", &ChunkOrder::n_windows)
      .def_prop_ro("windows_per_pass", &ChunkOrder::windows_per_pass)
      .def(
          "chunks_of",
          [](const ChunkOrder& self, std::uint64_t window) {
            const ChunkOrder::Place at = self.place_of(window);
            std::vector<std::tuple<std::uint32_t, std::uint64_t, std::uint64_t>> out;
            for (const Chunk& c : self.chunks_of(at.pass, at.group)) out.emplace_back(c.source, c.begin, c.end);
            return out;
          },
          nb::arg("window"), "[(source, begin, end)] of the window's group, in the order in which rows are counted.")
      .def(
          "rows_of",
          [](const ChunkOrder& self, std::uint64_t window, std::uint64_t n_rows) {
            return self.rows_of(self.place_of(window), n_rows);
          },
          nb::arg("window"), nb::arg("n_rows"), "The window's rows among the n_rows of its group.");
}

}  // namespace

void bind_plan(nb::module_& m) {
  bind_order(m);
  bind_chunk_order(m);
  nb::class_<WindowPlan>(m, "WindowPlan")
      .def_ro("window", &WindowPlan::window)
      .def_ro("n_samples", &WindowPlan::n_samples)
      .def_ro("n_usable", &WindowPlan::n_usable)
      .def("digest", &WindowPlan::digest)
      .def_prop_ro(
          "packs",
          [](const WindowPlan& self) {
            nb::list packs;
            for (const PackPlan& pack : self.packs) packs.append(nb::cast(pack.members));
            return packs;
          },
          "Members of each pack: indices into the window's samples.")
      .def_prop_ro(
          "sums",
          [](const WindowPlan& self) {
            nb::list sums;
            for (const PackPlan& p : self.packs) {
              nb::dict sum;
              sum["tokens"] = p.tokens;
              sum["target_tokens"] = p.target_tokens;
              sum["patches"] = p.patches;
              sum["images"] = p.images;
              sum["videos"] = p.videos;
              sum["cost_language"] = p.cost_language;
              sum["cost_vision"] = p.cost_vision;
              sum["aligned_tokens"] = p.aligned_tokens;
              sum["row_tokens"] = p.row_tokens;
              sum["total_tokens"] = p.total_tokens;
              sum["needs_image_dummy"] = p.needs_image_dummy;
              sum["needs_video_dummy"] = p.needs_video_dummy;
              sums.append(sum);
            }
            return sums;
          },
          "The sums of each pack, by the names of PackPlan.");
  m.def(
      "plan_window",
      [](std::uint64_t window, const SampleTable& table, const nb::dict& values) {
        const std::vector<PlanSample> samples = samples_of(table);
        const PackSettings settings = pack_settings_of(values);
        auto plan = [&] {
          nb::gil_scoped_release unlocked;
          return plan_window(window, samples, settings);
        }();
        return value_or_throw(std::move(plan));
      },
      nb::arg("window"), nb::arg("samples").noconvert(), nb::arg("settings"),
      "samples: int64 (n, 8): order_index, tokens (0: unusable), target_tokens, patches, images, videos, "
      "cost_language, "
      "cost_vision. settings: by the names of settings.Pack.core_values.");
  m.def(
      "assign_step",
      [](const std::vector<std::pair<std::int64_t, std::int64_t>>& costs_of_phases, std::int32_t dp_size) {
        check_or_throw(check_dp_size(static_cast<std::int32_t>(costs_of_phases.size()), dp_size));
        std::vector<PhaseCosts> costs;
        for (const auto& [language, vision] : costs_of_phases) costs.push_back({language, vision});
        std::vector<std::pair<std::int32_t, std::int32_t>> places;
        for (const PackPlace& place : assign_step(costs, dp_size)) places.emplace_back(place.rank, place.micro_batch);
        return places;
      },
      nb::arg("costs"), nb::kw_only(), nb::arg("dp_size"),
      "costs: (language, vision) of each pack. Returns (rank, micro_batch) of each.");

  nb::class_<StepPlanner>(m, "StepPlanner")
      .def(
          "__init__",
          [](StepPlanner* self, std::int32_t packs_per_step, std::uint64_t rows_per_pass,
             const std::optional<nb::dict>& state) {
            check_or_throw(check_dp_size(packs_per_step, 1));
            new (self) StepPlanner(packs_per_step, rows_per_pass, state ? state_of(*state) : PlanState{});
          },
          nb::kw_only(), nb::arg("packs_per_step"), nb::arg("rows_per_pass"), nb::arg("state") = nb::none())
      .def_prop_ro("next_window", &StepPlanner::next_window)
      .def("add", [](StepPlanner& self,
                     const WindowPlan& window) { check_or_throw(self.add(std::make_shared<WindowPlan>(window))); })
      .def("finish", &StepPlanner::finish)
      .def(
          "next",
          [](StepPlanner& self, std::int32_t dp_size) -> std::optional<nb::dict> {
            const auto step = self.next();
            if (!step) return std::nullopt;
            check_or_throw(check_dp_size(static_cast<std::int32_t>(step->packs.size()), dp_size));
            return step_to_dict(*step, dp_size);
          },
          nb::kw_only(), nb::arg("dp_size"), "The next step, or None.");
  m.def(
      "check_data_size",
      [](std::uint64_t rows_per_pass, std::int32_t packs_per_step, bool is_finite) {
        check_or_throw(check_data_size(rows_per_pass, packs_per_step, is_finite));
      },
      nb::kw_only(), nb::arg("rows_per_pass"), nb::arg("packs_per_step"), nb::arg("is_finite"));
  m.def(
      "cost_of",
      [](std::int64_t tokens, const std::vector<std::int64_t>& patches_per_image) {
        const CostModel model;
        std::int64_t vision = 0;
        for (const std::int64_t n : patches_per_image) vision += model.vision(n);
        return std::pair(model.language(tokens), vision);
      },
      nb::arg("tokens"), nb::arg("patches_per_image"), "(language, vision) in thousands of FLOPs, for Qwen3-VL-8B.");
}

}  // namespace stoker

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bind.h"
#include "engine/forecaster.h"
#include "engine/indexer.h"
#include "report_dict.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace stoker {
namespace {

nb::dict unevenness_dict(const Unevenness& u) {
  nb::dict out;
  out["mean"] = u.mean;
  out["worst"] = u.worst;
  return out;
}

nb::dict ranks_dict(const RankForecast& r) {
  nb::dict out;
  out["dp_size"] = r.dp_size;
  out["steps"] = r.n_steps;
  nb::dict imbalance;
  imbalance["total"] = unevenness_dict(r.total);
  imbalance["language"] = unevenness_dict(r.language);
  imbalance["vision"] = unevenness_dict(r.vision);
  out["imbalance"] = imbalance;
  nb::dict flops;
  flops["busy"] = r.busy * kFlopsPerCost;
  flops["per_step"] = r.per_step * kFlopsPerCost;
  flops["per_micro_batch"] = r.per_micro_batch * kFlopsPerCost;
  flops["per_phase"] = r.per_phase * kFlopsPerCost;
  out["flops"] = flops;
  nb::list steps;
  for (const StepCosts& s : r.steps) {
    steps.append(nb::make_tuple(s.least * kFlopsPerCost, s.mean * kFlopsPerCost, s.most * kFlopsPerCost,
                                s.per_phase * kFlopsPerCost));
  }
  out["step_flops"] = steps;
  return out;
}

nb::dict policy_dict(const PackForecast& p) {
  nb::dict out;
  out["policy"] = name_of(p.policy);
  out["packs"] = p.n_packs;
  out["samples"] = p.n_samples;
  out["tokens"] = p.tokens;
  out["target_tokens"] = p.target_tokens;
  out["padded_tokens"] = p.padded_tokens;
  out["patches"] = p.patches;
  out["images"] = p.images;
  out["clips"] = p.clips;
  out["packs_with_dummy"] = p.n_with_dummy;
  out["empty_packs"] = p.n_empty;
  out["pack_tokens"] = histogram_dict(p.pack_tokens);
  nb::list ranks;
  for (const RankForecast& r : p.ranks) ranks.append(ranks_dict(r));
  out["ranks"] = ranks;
  return out;
}

const char* name_of(LongSample::Fate fate) {
  switch (fate) {
    case LongSample::Fate::kKept:
      return "kept";
    case LongSample::Fate::kCut:
      return "cut";
    case LongSample::Fate::kDropped:
      return "dropped";
  }
  return "";
}

nb::dict forecast_dict(const ForecastReport& r) {
  nb::dict out;
  out["positions"] = r.n_positions;
  out["positions_known"] = r.n_known;
  out["positions_at_most"] = r.n_positions_at_most;
  out["positions_per_epoch"] = r.n_per_epoch;
  out["is_finite"] = r.is_finite;
  out["steps"] = r.n_steps;
  add_rejected(out, r.rejected);
  out["cut"] = r.n_cut;
  out["over_long"] = r.n_over_long;
  out["unsized_samples"] = r.n_unsized;
  out["unsized_media"] = r.n_unsized_media;
  out["sample_tokens"] = histogram_dict(r.tokens);
  nb::list longest;
  for (const LongSample& l : r.longest) {
    nb::dict d;
    d["manifest"] = text_or_bytes(l.manifest);
    d["line"] = l.line;
    d["tokens"] = l.tokens;
    d["images"] = l.images;
    d["clips"] = l.clips;
    d["fate"] = name_of(l.fate);
    longest.append(d);
  }
  out["longest"] = longest;
  nb::list policies;
  for (const PackForecast& p : r.policies) policies.append(policy_dict(p));
  out["policies"] = policies;
  out["elapsed_s"] = r.elapsed_s;
  return out;
}

nb::dict index_dict(const IndexReport& r) {
  nb::dict out;
  out["rows"] = r.n_rows;
  out["rows_in_all"] = r.n_rows_in_all;
  out["rows_known"] = r.n_known;
  add_rejected(out, r.rejected);
  nb::dict media;
  media["images"] = r.n_images;
  media["clips"] = r.n_clips;
  media["without_size"] = r.n_unsized;
  media["rejected_by_code"] = counts_dict(r.media_rejected);
  out["media"] = media;
  out["rows_with_length"] = r.n_lengths;
  out["tokens"] = histogram_dict(r.tokens);
  out["target_tokens"] = histogram_dict(r.target_tokens);
  out["patches"] = histogram_dict(r.patches);
  out["media_per_row"] = histogram_dict(r.images);
  out["pixels"] = histogram_dict(r.image_pixels);
  out["gflop"] = histogram_dict(r.cost);
  out["gflop_language"] = r.cost_language;
  out["gflop_vision"] = r.cost_vision;
  nb::list longer;
  for (const auto& [length, n] : r.n_longer_than) longer.append(nb::make_tuple(length, n));
  out["longer_than"] = longer;
  out["elapsed_s"] = r.elapsed_s;
  return out;
}

template <typename Facade>
bool done_within(Facade& self, int milliseconds) {
  auto done = [&] {
    const nb::gil_scoped_release unlocked;
    return self.wait_within(std::chrono::milliseconds(milliseconds));
  }();
  return value_or_throw(std::move(done));
}

}  // namespace

void bind_forecast(nb::module_& m) {
  nb::class_<Forecaster>(m, "CoreForecaster")
      .def_static(
          "create",
          [](const LoaderSettings& settings, std::vector<std::int32_t> dp_sizes, std::optional<std::int64_t> n_steps,
             std::optional<std::int64_t> n_epochs, bool reads_headers, bool compares, std::size_t n_longest) {
            return value_or_throw(Forecaster::create(settings, {.dp_sizes = std::move(dp_sizes),
                                                                .n_steps = n_steps,
                                                                .n_epochs = n_epochs,
                                                                .reads_headers = reads_headers,
                                                                .compares = compares,
                                                                .n_longest = n_longest}));
          },
          "settings"_a, nb::kw_only(), "dp_sizes"_a, "n_steps"_a.none(), "n_epochs"_a.none(), "reads_headers"_a,
          "compares"_a, "n_longest"_a)
      .def("wait_within", &done_within<Forecaster>, "milliseconds"_a)
      .def("progress", &Forecaster::progress)
      .def("report", [](const Forecaster& self) { return forecast_dict(self.report()); })
      .def("stop", &Forecaster::stop, nb::call_guard<nb::gil_scoped_release>());
  nb::class_<Indexer>(m, "CoreIndexer")
      .def_static(
          "create",
          [](const LoaderSettings& settings, bool reads_headers, std::string ledger, int n_examples,
             std::vector<std::int64_t> pack_lengths) {
            return value_or_throw(Indexer::create(settings, {.reads_headers = reads_headers,
                                                             .ledger = std::move(ledger),
                                                             .n_examples = n_examples,
                                                             .pack_lengths = std::move(pack_lengths)}));
          },
          "settings"_a, nb::kw_only(), "reads_headers"_a, "ledger"_a, "n_examples"_a, "pack_lengths"_a)
      .def("wait_within", &done_within<Indexer>, "milliseconds"_a)
      .def("progress", &Indexer::progress)
      .def("report", [](const Indexer& self) { return index_dict(self.report()); })
      .def("stop", &Indexer::stop, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace stoker

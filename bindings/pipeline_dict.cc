#include "pipeline_dict.h"

#include <nanobind/stl/string.h>

#include "bind.h"

namespace nb = nanobind;

namespace stoker {

nb::dict pipeline_dict(const PipelineSnapshot& p) {
  nb::dict d;
  d["elapsed_s"] = p.elapsed_s;
  nb::dict stages;
  auto stage = [&](const char* name, double busy, double wait_in, double wait_out, std::int64_t items) {
    nb::dict s;
    s["busy_s"] = busy;
    s["wait_in_s"] = wait_in;
    s["wait_out_s"] = wait_out;
    s["items"] = items;
    stages[name] = s;
  };
  stage("plan", p.plan_busy_s, p.plan_wait_measure_s, p.plan_wait_queue_s, p.windows_planned);
  stage("admit", p.admit_busy_s, p.admit_wait_gate_s, p.admit_wait_memory_s, p.packs_admitted);
  if (p.templates_rendered > 0) stage("template", p.template_busy_s, p.template_wait_s, 0, p.templates_rendered);
  stage("fetch", static_cast<double>(p.fetch.busy_ns) * 1e-9, 0, 0, p.fetch.n_succeeded);
  stage("prepare", p.worker_busy_s, p.worker_idle_s, 0, p.worker_tasks);
  d["stages"] = stages;
  nb::dict queues;
  queues["planned_packs"] = p.mean_planned_packs;
  queues["worker_tasks"] = p.mean_worker_tasks;
  queues["ready_packs"] = p.mean_ready_packs;
  d["queues_mean_length"] = queues;
  nb::dict fetch;
  fetch["requests"] = p.fetch.n_submitted;
  fetch["shared"] = p.fetch.n_shared;
  fetch["retries"] = p.fetch.n_retries;
  fetch["hedges"] = p.fetch.n_hedges;
  fetch["hedges_won"] = p.fetch.n_hedges_won;
  fetch["throttled"] = p.fetch.n_throttled;
  nb::dict failed_tries;
  for (const auto& [reason, n] : p.fetch.failed_tries) failed_tries[str_of(name_of(reason))] = n;
  fetch["failed_tries"] = failed_tries;
  fetch["bytes"] = p.fetch.n_bytes;
  fetch["wire_bytes"] = p.fetch.n_wire_bytes;
  fetch["header_requests"] = p.header_probes;
  fetch["header_bytes"] = p.header_bytes;
  fetch["in_flight"] = p.fetch.n_in_flight;
  fetch["limit"] = p.fetch.limit;
  d["fetch"] = fetch;
  d["cache"] = nb::none();
  if (const auto& c = p.fetch.cache) {
    nb::dict cache;
    cache["hits"] = c->n_hits;
    cache["misses"] = c->n_misses;
    cache["changed"] = c->n_changed;
    cache["hit_bytes"] = c->n_hit_bytes;
    cache["written"] = c->n_written;
    cache["written_bytes"] = c->n_written_bytes;
    cache["not_kept_up"] = c->n_lagging;
    cache["evicted"] = c->n_evicted;
    cache["damaged"] = c->n_damaged;
    cache["used_bytes"] = c->used_bytes;
    cache["limit_bytes"] = c->limit_bytes;
    cache["share"] = c->share;
    d["cache"] = cache;
  }
  nb::dict memory;
  memory["limit_bytes"] = p.memory_limit_bytes;
  memory["encoded_limit_bytes"] = p.encoded_limit_bytes;
  memory["encoded_in_use_bytes"] = p.encoded_in_use_bytes;
  memory["encoded_peak_bytes"] = p.encoded_peak_bytes;
  memory["decoders_limit_bytes"] = p.decoders_limit_bytes;
  memory["decoders_peak_bytes"] = p.decoders_peak_bytes;
  memory["in_use_bytes"] = p.memory_in_use_bytes;
  memory["peak_bytes"] = p.memory_peak_bytes;
  memory["blocks_mapped"] = p.blocks_mapped;
  d["memory"] = memory;
  d["n_workers"] = p.n_workers;
  d["decoded_megapixels"] = p.decoded_megapixels;
  nb::dict notes;
  for (std::size_t i = 0; i < kImageNoteCount; ++i) {
    if (p.image_notes[i] > 0) notes[nb::str(kImageNoteNames[i].data(), kImageNoteNames[i].size())] = p.image_notes[i];
  }
  d["image_notes"] = notes;
  d["changed_media"] = p.changed_media;
  d["samples_planned"] = p.samples_planned;
  d["samples_planned_bad"] = p.samples_planned_bad;
  d["samples_recalled"] = p.samples_recalled;
  d["samples_truncated"] = p.samples_truncated;
  d["content_control_literals"] = p.content_control_literals;
  return d;
}

nb::dict bad_dict(const std::map<Reason, std::int64_t>& bad) {
  nb::dict d;
  for (const auto& [reason, n] : bad) d[str_of(name_of(reason))] = n;
  return d;
}

}  // namespace stoker

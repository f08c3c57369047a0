#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "exec/worker_pool.h"
#include "media/image.h"
#include "source/source.h"

namespace stoker {

/// What every stage and queue has counted so far; plain numbers, times in seconds. A process that has not all stages
/// leaves the others' at 0.
struct PipelineSnapshot {
  double elapsed_s = 0;
  std::int64_t windows_planned = 0, samples_planned = 0, samples_planned_bad = 0;
  double plan_busy_s = 0, plan_wait_measure_s = 0, plan_wait_queue_s = 0;
  double admit_busy_s = 0, admit_wait_memory_s = 0, admit_wait_gate_s = 0;
  std::int64_t packs_admitted = 0, packs_finished = 0;
  double worker_busy_s = 0, worker_idle_s = 0;
  std::int64_t worker_tasks = 0;
  int n_workers = 0;
  double decoded_megapixels = 0;
  std::array<std::int64_t, kImageNoteCount> image_notes{};  ///< pictures used although odd, by ImageNote
  std::int64_t header_probes = 0, header_bytes = 0;
  std::int64_t samples_recalled = 0;                ///< planned from the index, without reading their rows
  std::int64_t changed_media = 0;                   ///< pictures whose object changed after its header was read
  std::int64_t samples_truncated = 0;               ///< that lost turns from their end
  std::int64_t content_control_literals = 0;        ///< control tokens in content that stayed text
  double template_busy_s = 0, template_wait_s = 0;  ///< rendering outside of the engine; waiting for the interpreter
  std::int64_t templates_rendered = 0;
  FetchStats fetch;
  double mean_planned_packs = 0;  ///< in the queue between plan and admission
  double mean_ready_packs = 0;    ///< finished, not yet taken
  double mean_worker_tasks = 0;   ///< waiting for a worker
  std::size_t memory_limit_bytes = 0, memory_in_use_bytes = 0, memory_peak_bytes = 0;
  std::size_t encoded_limit_bytes = 0, encoded_in_use_bytes = 0, encoded_peak_bytes = 0;  ///< of these, encoded objects
  std::size_t decoders_limit_bytes = 0, decoders_peak_bytes = 0;  ///< beside them, pictures that are decoded as a whole
  std::int64_t blocks_mapped = 0;
};

/// Adds what workers, fetcher and renderers of templates have counted. `to.elapsed_s` is there already.
/// @param templates  May be null.
void tell(const WorkerPool& workers, const Fetcher& fetcher, const StageClock* templates, PipelineSnapshot& to);

}  // namespace stoker

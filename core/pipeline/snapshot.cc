#include "pipeline/snapshot.h"

namespace stoker {

void tell(const WorkerPool& workers, const Fetcher& fetcher, const StageClock* templates, PipelineSnapshot& to) {
  to.worker_busy_s = to_seconds(Nanos(workers.clock().busy_ns.get()));
  to.worker_idle_s = to_seconds(Nanos(workers.clock().wait_in_ns.get()));
  to.worker_tasks = workers.clock().items.get();
  to.n_workers = workers.n_threads();
  to.mean_worker_tasks = to_seconds(Nanos(workers.occupancy_integral())) / to.elapsed_s;
  to.fetch = fetcher.stats();
  if (templates == nullptr) return;
  to.template_busy_s = to_seconds(Nanos(templates->busy_ns.get()));
  to.template_wait_s = to_seconds(Nanos(templates->wait_in_ns.get()));
  to.templates_rendered = templates->items.get();
}

}  // namespace stoker

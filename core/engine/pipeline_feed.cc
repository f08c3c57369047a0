#include "engine/pipeline_feed.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

namespace stoker {

peers::BadCounts counted(const std::vector<LedgerEntry>& entries) {
  std::map<Reason, std::int64_t> bad;
  for (const LedgerEntry& entry : entries) ++bad[entry.status.reason()];
  return {bad.begin(), bad.end()};
}

Feed::LeftOver PipelineFeed::take_left_over() {
  LeftOver out{pipeline_->take_left_over(), {}};
  out.bad = counted(out.ledger);
  return out;
}

Result<std::optional<Feed::Item>> PipelineFeed::take_within(std::chrono::milliseconds timeout) {
  STOKER_TRY(std::optional<ReadyPack> pack, pipeline_->take_within(timeout));
  if (!pack) return std::optional<Item>();
  const std::int64_t n_samples = pack->n_samples_planned - static_cast<std::int64_t>(pack->found_late.size());
  Item item;
  item.verdict = late_.count(pack->found_late, n_samples);
  item.ledger = std::move(pack->task.planned_around);
  std::move(pack->found_late.begin(), pack->found_late.end(), std::back_inserter(item.ledger));
  item.delivery = {.batch = std::move(pack->batch),
                   .n_samples = n_samples,
                   .is_last_of_step = pack->task.is_last_of_step,
                   .state_after = std::move(pack->task.state_after),
                   .bad = counted(item.ledger)};
  return std::optional<Item>(std::move(item));
}

std::optional<Stall> PipelineFeed::stall() {
  if (!pipeline_->waits_for_held_memory()) return std::nullopt;
  return Stall{fmt::format("the next batch waits for memory: the trainer holds batches of {} MB, speed.memory_limit is "
                           "{} MB for this rank; let "
                           "batches go before asking for more, or raise the limit",
                           pipeline_->memory_in_use_bytes() >> 20, settings_.speed.memory_limit_bytes >> 20),
               Reason::kMemoryLimit};
}

}  // namespace stoker

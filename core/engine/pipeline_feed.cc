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
  n_late_bad_ += static_cast<std::int64_t>(pack->found_late.size());
  Item item;
  item.verdict = check_late(*pack);
  item.ledger = std::move(pack->task.planned_around);
  std::move(pack->found_late.begin(), pack->found_late.end(), std::back_inserter(item.ledger));
  item.delivery = {.batch = std::move(pack->batch),
                   .n_samples = pack->n_samples_planned - static_cast<std::int64_t>(pack->found_late.size()),
                   .is_last_of_step = pack->task.is_last_of_step,
                   .state_after = std::move(pack->task.state_after),
                   .bad = counted(item.ledger)};
  n_samples_ += item.delivery.n_samples;
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

Status PipelineFeed::check_late(const ReadyPack& pack) const {
  if (pack.found_late.empty()) return {};
  const auto where = [this](const LedgerEntry& entry) {
    return dataset_.manifest(entry.entry.source).describe(entry.entry.row) + ": " + entry.media;
  };
  const bool stops_at_change = settings_.output.changed_media == ChangedMedia::kStop;
  for (const LedgerEntry& entry : pack.found_late) {
    if (settings_.bad_samples.policy != BadSamplePolicy::kStop &&
        !(stops_at_change && entry.status.reason() == Reason::kMediaChanged)) {
      continue;
    }
    Status status = entry.status;
    return std::move(status).with(where(entry));
  }
  const LedgerEntry& first = pack.found_late.front();
  const std::int64_t seen = std::max(n_samples_ + n_late_bad_, settings_.output.window_samples / settings_.dp_size);
  if (static_cast<double>(n_late_bad_) > settings_.bad_samples.max_fraction * static_cast<double>(seen)) {
    return Status(
        Reason::kTooManyBad,
        fmt::format("{} of {} samples of this rank turned out bad, bad_samples.max_fraction is {}; the last is {}: {}",
                    n_late_bad_, seen, settings_.bad_samples.max_fraction, where(first), first.status.to_string()));
  }
  return {};
}

}  // namespace stoker

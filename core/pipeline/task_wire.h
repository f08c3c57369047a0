#pragma once

#include <cstddef>
#include <cstdint>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "data/lengths.h"
#include "model/qwen_vl/qwen_vl.h"
#include "pipeline/dataset.h"
#include "pipeline/pack_task.h"
#include "pipeline/settings.h"

namespace stoker {

/// What a process that has the data and no plan must know of a pack to make it: 30 to 60 bytes for each sample.
struct TaskMessage {
  std::uint64_t sequence = 0;
  std::uint64_t priority = 0;
  std::int32_t rank = 0;
  std::int64_t step = 0, micro_batch = 0, micro_batches_in_step = 0;  ///< this and the next line as in BatchCounts
  std::int64_t step_target_tokens = 0, cost = 0;
  std::vector<SampleLengths> members;  ///< in the pack's order; none: a dummy

  bool operator==(const TaskMessage&) const = default;
};

/// No message is longer: hundreds of thousands of samples.
inline constexpr std::size_t kMaxTaskBytes = std::size_t{16} << 20;

/// Of a task before its admission.
TaskMessage message_of(const PackTask& task);
std::string encode_task(const TaskMessage& message);

/// Reads foreign bytes: takes memory in proportion to them, whatever they claim. Equal bytes come of encoding it again.
/// @return PEER_MISMATCH for another version, or what is no task.
Result<TaskMessage> decode_task(std::string_view bytes);

/// The task that a message stands for: samples without their text, which admission reads. What is of no use to whoever
/// makes the pack (states, the ledger) is left out.
/// @return PLAN_MISMATCH if it cannot have come from these settings; PEER_MISMATCH for samples that the order does not
/// have; as Dataset::at. Blocks for the disk where rows are not counted.
Result<PackTask> task_from(const TaskMessage& message, const OutputSettings& output, const Dataset& dataset,
                           const qwen_vl::QwenVl& model, const std::stop_token& stop);

}  // namespace stoker

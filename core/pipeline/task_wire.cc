#include "pipeline/task_wire.h"

#include <fmt/format.h>

#include <memory>
#include <numeric>
#include <utility>

#include "base/wire.h"
#include "pipeline/lengths_steps.h"
#include "plan/padding.h"

namespace stoker {
namespace {

constexpr std::uint64_t kMagic = 0x53746f6b54730001;  // counts up with every change of the message
constexpr std::uint64_t kMany = INT64_MAX;

Status no_task(std::string_view why) {
  return {Reason::kPeerMismatch, fmt::format("the coordinator sent what is no pack to make: {}. All processes of a "
                                             "run need the same version of Stoker",
                                             why)};
}

/// Whether some pack of these settings may have so many tokens, each sample's rounded up.
bool fits(const PackSettings& settings, const MeasuredWindow& window) {
  if (settings.form == PackForm::kSamples) {
    return window.samples.size() <= static_cast<std::size_t>(settings.samples_per_pack);
  }
  std::int64_t left = settings.tokens_per_pack;
  for (const MeasuredSample& sample : window.samples) left -= aligned_tokens(settings, sample.tokens);
  return left >= 0;
}

}  // namespace

TaskMessage message_of(const PackTask& task) {
  TaskMessage out{.sequence = task.sequence,
                  .priority = task.priority,
                  .rank = task.rank,
                  .step = task.counts.step,
                  .micro_batch = task.counts.micro_batch,
                  .micro_batches_in_step = task.counts.micro_batches_in_step,
                  .step_target_tokens = task.counts.step_target_tokens,
                  .cost = task.counts.cost,
                  .members = {}};
  out.members.reserve(task.members.size());
  for (std::size_t i = 0; i < task.members.size(); ++i) out.members.push_back(lengths_of(task.sample(i)));
  return out;
}

std::string encode_task(const TaskMessage& message) {
  const auto& [sequence, priority, rank, step, micro_batch, n_micro, targets, cost, members] = message;
  std::string bytes;
  WireWriter out(bytes);
  out.fixed64(kMagic);
  out.varint(sequence);
  out.varint(priority);
  out.varint(static_cast<std::uint64_t>(rank));
  for (const std::int64_t count : {step, micro_batch, n_micro, targets, cost}) {
    out.varint(static_cast<std::uint64_t>(count));
  }
  return bytes + encode_lengths(members);
}

Result<TaskMessage> decode_task(std::string_view bytes) {
  if (bytes.size() > kMaxTaskBytes) return no_task(fmt::format("{} bytes", bytes.size()));
  WireReader in(bytes);
  if (in.fixed64() != kMagic) return no_task("another version, or something else");
  TaskMessage out;
  out.sequence = in.varint();
  out.priority = in.varint();
  out.rank = static_cast<std::int32_t>(in.varint(INT32_MAX));
  for (std::int64_t* count :
       {&out.step, &out.micro_batch, &out.micro_batches_in_step, &out.step_target_tokens, &out.cost}) {
    *count = static_cast<std::int64_t>(in.varint(kMany));
  }
  if (!in.ok() || out.micro_batch >= out.micro_batches_in_step) return no_task("numbers out of range");
  auto members = decode_lengths(bytes.substr(bytes.size() - in.n_left()));
  if (!members.ok()) return no_task(members.status().message());
  out.members = std::move(members).value();
  return out;
}

Result<PackTask> task_from(const TaskMessage& message, const OutputSettings& output, const Dataset& dataset,
                           const qwen_vl::QwenVl& model, const std::stop_token& stop) {
  PackTask task;
  task.sequence = message.sequence;
  task.priority = message.priority;
  task.rank = message.rank;
  task.counts.step = message.step;
  task.counts.micro_batch = message.micro_batch;
  task.counts.micro_batches_in_step = message.micro_batches_in_step;
  task.counts.step_target_tokens = message.step_target_tokens;
  task.counts.cost = message.cost;
  task.is_last_of_step = message.micro_batch + 1 == message.micro_batches_in_step;
  if (message.members.empty()) return task;
  auto window = std::make_shared<MeasuredWindow>();
  window->samples.reserve(message.members.size());
  for (const SampleLengths& lengths : message.members) {
    if (!lengths.is_usable()) return no_task("a sample that cannot be used");
    const auto entry = dataset.at(lengths.order_index, stop);
    if (!entry.ok() && entry.status().reason() == Reason::kSettings) return no_task(entry.status().message());
    if (!entry.ok()) return entry.status();
    STOKER_TRY(MeasuredSample sample, measured_from(lengths, *entry, output, model));
    window->samples.push_back(std::move(sample));
  }
  if (!fits(output.pack, *window)) return no_task("more samples than a pack of these settings holds");
  task.members.resize(window->samples.size());
  std::iota(task.members.begin(), task.members.end(), 0u);
  task.window = std::move(window);
  return task;
}

}  // namespace stoker

#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "data/sample.h"
#include "text/chat_template.h"

namespace stoker::qwen_vl {

/// Which turns have labels.
enum class TrainOn : std::uint8_t {
  kTurns,     ///< every turn of the chosen roles
  kLastTurn,  ///< the last of them
  kAll,       ///< every token of the conversation, headers too, but for the first and the vision tokens
};

/// What is trained behind a turn's content.
enum class EndOfTurn : std::uint8_t {
  kFull,   ///< <|im_end|> and the line feed after it: qwen-vl-finetune, ms-swift, LLaMA-Factory
  kToken,  ///< <|im_end|>
  kNone,
};

/// What happens to a turn's own weight that is neither 0 nor 1.
enum class LossWeights : std::uint8_t {
  kReject,   ///< the row is bad: labels are there or not
  kDeliver,  ///< packs have an array of weights beside their labels
};

/// What is trained. A turn's own word (`Turn::loss_scale`) comes before all of it.
struct LabelRule {
  TrainOn train_on = TrainOn::kTurns;
  EndOfTurn end_of_turn = EndOfTurn::kFull;
  LossWeights weights = LossWeights::kReject;
  std::uint8_t roles = 1U << static_cast<unsigned>(Role::kAssistant);  ///< bits by Role; of no meaning for kAll

  bool has_role(Role role) const { return (roles >> static_cast<unsigned>(role) & 1U) != 0; }
};

/// How much each chunk of a rendered conversation is trained: (chunks) 0 not at all, 1 wholly, others as LossWeights
/// says.
///
/// A chunk that holds several turns, as a template may join neighbouring tool turns, follows their word if they agree.
/// @return ROW_SCHEMA for a weight that the rule rejects, or where turns in one chunk differ; TEMPLATE_DROPS if turns
///         have a word and the rendered text does not tell where they are.
Result<std::vector<float>> chunk_weights(const text::Rendered& rendered, const Sample& sample, const LabelRule& rule);

}  // namespace stoker::qwen_vl

#include "model/qwen_vl/labels.h"

#include <fmt/format.h>

#include <optional>

namespace stoker::qwen_vl {
namespace {

/// A turn's own word on its weight; nothing if it says nothing.
Result<std::optional<float>> word_of(const Turn& turn, std::size_t index, const LabelRule& rule) {
  const std::optional<float> weight = turn.loss_scale;
  if (rule.weights == LossWeights::kReject && weight && *weight != 0.0F && *weight != 1.0F) {
    return Status(Reason::kRowSchema,
                  fmt::format("turn {} asks for a loss of {}: labels are there or not, so it takes 0 (or false) and 1 "
                              "(or true); labels.weights: deliver takes any weight and gives it as loss_weights",
                              index + 1, *weight));
  }
  return weight;
}

Result<std::optional<float>> word_of(const text::RenderedTurn& chunk, const Sample& sample, const LabelRule& rule) {
  std::optional<float> word;
  for (std::uint32_t i = 0; i < chunk.n_turns; ++i) {
    const std::size_t index = chunk.turn + i;
    STOKER_TRY(const std::optional<float> one, word_of(sample.turns[index], index, rule));
    if (i > 0 && one != word) {
      return Status(Reason::kRowSchema,
                    fmt::format("turns {} and {} differ in their loss, but the chat template shows them as one turn",
                                index, index + 1));
    }
    word = one;
  }
  return word;
}

bool is_chosen(const text::RenderedTurn& chunk, const LabelRule& rule) {
  if (rule.train_on == TrainOn::kAll) return true;
  // What the template makes up (a default system prompt) is nobody's turn; an answer is one wherever it comes from.
  const bool is_turn = chunk.turn != text::RenderedTurn::kNoTurn || chunk.is_assistant;
  return is_turn && chunk.role && rule.has_role(*chunk.role);
}

/// Words that belong to no chunk, because the text was rendered elsewhere, must not be lost.
Status check_words(const text::Rendered& rendered, const Sample& sample) {
  for (const text::RenderedTurn& chunk : rendered.chunks) {
    if (!chunk.is_cut || !chunk.role || chunk.turn != text::RenderedTurn::kNoTurn) continue;
    for (std::size_t i = 0; i < sample.turns.size(); ++i) {
      if (sample.turns[i].role == *chunk.role && sample.turns[i].loss_scale) {
        return {Reason::kTemplateDrops,
                fmt::format("turn {} has a word on its loss, but the rendered text has another number of turns of its "
                            "role than the row, so that it cannot be found there",
                            i + 1)};
      }
    }
  }
  return {};
}

}  // namespace

Result<std::vector<float>> chunk_weights(const text::Rendered& rendered, const Sample& sample, const LabelRule& rule) {
  STOKER_CHECKED(check_words(rendered, sample));
  std::vector<float> weights(rendered.chunks.size(), 0.0F);
  std::size_t last = rendered.chunks.size();
  for (std::size_t i = 0; i < rendered.chunks.size(); ++i) {
    if (!is_chosen(rendered.chunks[i], rule)) continue;
    weights[i] = 1.0F;
    if (rule.train_on == TrainOn::kLastTurn && last < i) weights[last] = 0.0F;
    last = i;
  }
  for (std::size_t i = 0; i < rendered.chunks.size(); ++i) {
    STOKER_TRY(const std::optional<float> word, word_of(rendered.chunks[i], sample, rule));
    if (word) weights[i] = *word;
  }
  return weights;
}

}  // namespace stoker::qwen_vl

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <utility>
#include <vector>

#include "model/qwen_vl/clip_text.h"
#include "model/qwen_vl/labels.h"
#include "model/qwen_vl/qwen_vl.h"

namespace stoker::qwen_vl {
namespace {

/// Tokenises chunks one after another and marks what is trained of each.
class Encoder {
 public:
  /// What the labels need to know of the vocabulary.
  struct Ids {
    std::int32_t line_feed = 0;
    std::array<std::int32_t, 5> vision{};  ///< never trained
  };

  Encoder(const text::Tokenizer& tokenizer, const Ids& known, const LabelRule& rule, bool is_guarded)
      : tokenizer_(tokenizer), known_(known), rule_(rule), is_guarded_(is_guarded) {}

  /// @param weight  0: not trained.
  void add(const text::RenderedTurn& chunk, float weight) {
    // An added token ends the turn, so that its ids and those of what follows join to the whole's.
    const std::size_t begin = out.ids.size();
    const std::size_t end_bytes = chunk.end_bytes > 0 ? chunk.end_bytes : chunk.text.size();
    encode(chunk, 0, end_bytes);
    const std::size_t turn_end = out.ids.size();
    encode(chunk, end_bytes, chunk.text.size());
    out.is_trained.resize(out.ids.size(), 0);
    if ((weight != 0.0F && weight != 1.0F) || !out.loss_weights.empty()) {
      out.loss_weights.resize(begin, 1.0F);
      out.loss_weights.resize(out.ids.size(), weight);
    }
    if (weight == 0.0F) return;
    if (rule_.train_on == TrainOn::kAll) {
      mark(begin, out.ids.size());
      has_answer = true;
      return;
    }
    // The header is <|im_start|>, the role, and a line feed unless that fused with the content's own.
    std::size_t first = begin + n_header_ids(chunk);
    if (first < turn_end && out.ids[first] == known_.line_feed) ++first;
    const std::size_t content_end = chunk.end_bytes > 0 ? turn_end - 1 : turn_end;
    mark(first, content_end);
    const bool is_answer = content_end > first;
    if (chunk.end_bytes > 0 && rule_.end_of_turn != EndOfTurn::kNone) mark(content_end, turn_end);
    if (chunk.end_bytes > 0 && rule_.end_of_turn == EndOfTurn::kFull && turn_end < out.ids.size() &&
        out.ids[turn_end] == known_.line_feed) {
      mark(turn_end, turn_end + 1);
    }
    has_answer = has_answer || is_answer;
    if (is_answer) out.cuts.push_back({.n_ids = static_cast<std::int32_t>(out.ids.size())});
  }

  /// Takes labels off where none may be, and counts.
  void finish(std::int32_t image_pad, std::int32_t video_pad) {
    if (!out.is_trained.empty()) out.is_trained[0] = 0;
    std::size_t cut = 0;
    for (std::size_t i = 0; i < out.ids.size(); ++i) {
      while (cut < out.cuts.size() && static_cast<std::size_t>(out.cuts[cut].n_ids) == i) close(out.cuts[cut++]);
      if (std::find(known_.vision.begin(), known_.vision.end(), out.ids[i]) != known_.vision.end()) {
        out.is_trained[i] = 0;
        out.n_images += out.ids[i] == image_pad ? 1 : 0;
        out.n_clip_pads += out.ids[i] == video_pad ? 1 : 0;
      }
      out.n_trained += out.is_trained[i];
    }
    while (cut < out.cuts.size()) close(out.cuts[cut++]);
  }

  SampleText out;
  bool has_answer = false;

 private:
  void encode(const text::RenderedTurn& chunk, std::size_t begin, std::size_t end) {
    if (begin >= end) return;
    spans_.clear();
    if (is_guarded_) {
      for (const text::ByteSpan& span : chunk.content) {
        if (span.begin >= end || span.end <= begin) continue;
        spans_.push_back({std::max(span.begin, begin) - begin, std::min(span.end, end) - begin});
      }
    }
    const auto counts = tokenizer_.encode(std::string_view(chunk.text).substr(begin, end - begin), spans_, out.ids);
    out.n_control_literals += static_cast<std::int32_t>(counts.control_literals);
  }
  std::size_t n_header_ids(const text::RenderedTurn& chunk) {
    header_.clear();
    tokenizer_.encode(std::string_view(chunk.text).substr(0, chunk.header_bytes), {}, header_);
    return header_.size();
  }
  void mark(std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) out.is_trained[i] = 1;
  }
  void close(SampleText::Cut& cut) const {
    cut.n_images = out.n_images;
    cut.n_clip_pads = out.n_clip_pads;
    cut.n_trained = out.n_trained;
  }

  const text::Tokenizer& tokenizer_;
  const Ids known_;
  const LabelRule& rule_;
  const bool is_guarded_;
  std::vector<text::ByteSpan> spans_;
  std::vector<std::int32_t> header_;
};

Status nothing_trained(const text::Rendered& rendered, const LabelRule& rule) {
  const bool has_turns = std::any_of(rendered.chunks.begin(), rendered.chunks.end(),
                                     [](const text::RenderedTurn& chunk) { return chunk.role.has_value(); });
  if (!has_turns) {
    return {Reason::kNoLossTokens,
            "the chat template writes no <|im_start|> with a role, so that no turn can be told from the others"};
  }
  const bool is_default = rule.train_on != TrainOn::kAll && rule.roles == LabelRule().roles;
  return {Reason::kNoLossTokens, is_default ? "no assistant turn that is trained says anything"
                                            : "no turn that labels.train_on and labels.roles choose says anything"};
}

}  // namespace

Result<SampleText> QwenVl::encode(const Sample& sample, std::vector<TurnRange>* turns) const {
  STOKER_TRY(text::Rendered rendered, template_.render(sample, {}));
  if (profile_.dropped_roles == DroppedRoles::kError) STOKER_CHECKED(rendered.left_out);
  STOKER_TRY(const std::vector<float> weights, chunk_weights(rendered, sample, labels_));
  STOKER_TRY(std::vector<std::vector<std::string>> times, clip_times(sample));
  Encoder encoder(
      *tokenizer_,
      {.line_feed = line_feed_, .vision = {image_pad_, video_pad_, vision_pad_, vision_start_, vision_end_}}, labels_,
      profile_.content_tokens == ContentTokens::kGuard);
  for (std::size_t i = 0; i < rendered.chunks.size(); ++i) {
    text::RenderedTurn& chunk = rendered.chunks[i];
    if (!times.empty()) {
      const std::size_t n_shown =
          write_clip_times(chunk, times, profile_.clip_text, profile_.content_tokens == ContentTokens::kRaw);
      times.erase(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(n_shown));
    }
    const auto begin = static_cast<std::int64_t>(encoder.out.ids.size());
    encoder.add(chunk, weights[i]);
    if (turns != nullptr) {
      turns->push_back({chunk.turn, chunk.is_assistant, begin, static_cast<std::int64_t>(encoder.out.ids.size())});
    }
  }
  encoder.finish(image_pad_, video_pad_);
  SampleText out = std::move(encoder.out);
  STOKER_CHECKED(check_media(sample, out));
  if (!encoder.has_answer || out.n_trained == 0) return nothing_trained(rendered, labels_);
  return out;
}

}  // namespace stoker::qwen_vl

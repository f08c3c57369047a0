// A row through the chat templates: what the row wrote never becomes the template's own, by whichever way it is
// rendered.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "manifest/row.h"
#include "text/chat_template.h"
#include "text/foreign_template.h"
#include "text/templates/native_template.h"
#include "text/tokenizer.h"

namespace {

using stoker::text::Rendered;
using stoker::text::RenderedTurn;

void require(bool claim) {
  if (!claim) std::abort();
}

/// Writes down what it was asked for, so that every word comes from the row.
class Echo final : public stoker::text::TurnRenderer {
 public:
  stoker::Result<std::string> render(std::string_view request) const override { return std::string(request); }
};

void check_spans(const RenderedTurn& chunk) {
  std::size_t at = 0;
  for (const stoker::text::ByteSpan& span : chunk.content) {
    require(at <= span.begin && span.begin < span.end && span.end <= chunk.text.size());
    at = span.end;
  }
}

std::size_t count(const std::vector<std::int32_t>& ids, std::int32_t id) {
  std::size_t n = 0;
  for (const std::int32_t one : ids) n += one == id ? 1 : 0;
  return n;
}

void check_native(const stoker::text::NativeTemplate& one, const stoker::Sample& sample,
                  const stoker::text::Tokenizer& tokenizer) {
  const Rendered rendered = one.render(sample, {.add_generation_prompt = true, .add_vision_id = true});
  std::vector<std::int32_t> ids, whole;
  std::size_t n_ends = 0, n_media = 0;
  for (const RenderedTurn& chunk : rendered.chunks) {
    check_spans(chunk);
    require(chunk.text.starts_with("<|im_start|>") && chunk.header_bytes > 12);
    require(chunk.turn == RenderedTurn::kNoTurn || chunk.turn + chunk.n_turns <= sample.turns.size());
    if (chunk.end_bytes > 0) require(chunk.text.substr(chunk.end_bytes - 10, 11) == "<|im_end|>\n");
    n_ends += chunk.end_bytes > 0 ? 1 : 0;
    n_media += chunk.media.size();
    tokenizer.encode(chunk.text, chunk.content, ids);
    tokenizer.encode(chunk.text, {}, whole);
  }
  require(count(ids, tokenizer.token_id("<|im_start|>").value_or(-1)) == rendered.chunks.size());
  require(count(ids, tokenizer.token_id("<|im_end|>").value_or(-1)) == n_ends);
  require(count(ids, tokenizer.token_id("<|image_pad|>").value_or(-1)) +
              count(ids, tokenizer.token_id("<|video_pad|>").value_or(-1)) ==
          n_media);
  std::vector<std::int32_t> joined;
  tokenizer.encode(rendered.text(), {}, joined);
  require(joined == whole);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const auto tokenizer = stoker::text::Tokenizer::load(STOKER_TESTDATA "/qwen3-vl/tokenizer.json");
  require(tokenizer.ok());
  const auto sample = stoker::parse_row({reinterpret_cast<const char*>(data), size});
  if (!sample.ok() || sample->turns.empty()) return 0;
  for (const auto& one : stoker::text::native_templates()) check_native(one, *sample, **tokenizer);

  const Rendered echoed = stoker::text::render_foreign(Echo(), *sample, {}).value();
  require(echoed.text() == stoker::text::render_request(*sample, {}));
  require(echoed.chunks.size() == 1);
  check_spans(echoed.chunks[0]);
  std::vector<std::int32_t> ids;
  (*tokenizer)->encode(echoed.chunks[0].text, echoed.chunks[0].content, ids);
  for (const std::string_view token : stoker::text::Tokenizer::guarded()) {
    require(count(ids, (*tokenizer)->token_id(token).value_or(-1)) == 0);
  }
  return 0;
}

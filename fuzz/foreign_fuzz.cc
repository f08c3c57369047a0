// What a chat template that the engine does not know may write: a row in the first line, behind it the text that its
// template is made to return. However the text is cut into turns, nothing of it is lost and every place lies inside.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "manifest/row.h"
#include "text/foreign_template.h"
#include "text/utf8.h"

namespace {

void require(bool claim) {
  if (!claim) std::abort();
}

class Says final : public stoker::text::TurnRenderer {
 public:
  explicit Says(std::string_view text) : text_(text) {}
  stoker::Result<std::string> render(std::string_view request) const override {
    require(stoker::text::is_valid_utf8(request));
    return text_;
  }

 private:
  std::string text_;
};

void check(const stoker::text::RenderedTurn& chunk, const stoker::Sample& sample) {
  std::size_t at = 0;
  for (const stoker::text::ByteSpan& span : chunk.content) {
    require(at <= span.begin && span.begin < span.end && span.end <= chunk.text.size());
    at = span.end;
  }
  require(!chunk.text.empty() && chunk.header_bytes <= chunk.text.size() && chunk.end_bytes <= chunk.text.size());
  require(chunk.role || chunk.header_bytes == 0);
  require(chunk.turn == stoker::text::RenderedTurn::kNoTurn || chunk.turn + chunk.n_turns <= sample.turns.size());
  for (const std::uint32_t media : chunk.media) require(media < sample.media.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t end = input.find('\n');
  if (end == std::string_view::npos) return 0;
  const std::string_view text = input.substr(end + 1);
  if (!stoker::text::is_valid_utf8(text)) return 0;  // a Python str
  const auto sample = stoker::parse_row(input.substr(0, end));
  if (!sample.ok() || sample->turns.empty()) return 0;
  const auto rendered = stoker::text::render_foreign(Says(text), *sample, {});
  if (!rendered.ok()) {
    require(rendered.status().reason() == stoker::Reason::kTemplateFailed);
    return 0;
  }
  for (const stoker::text::RenderedTurn& chunk : rendered->chunks) check(chunk, *sample);
  const bool has_marks = text.find("\xEF\xB7") != std::string_view::npos;  // U+FDD0 to U+FDEF, taken out again
  require(has_marks ? rendered->text().size() <= text.size() : rendered->text() == text);
  return 0;
}

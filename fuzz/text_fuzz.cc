// A conversation's text: repaired, normalised, cut and encoded.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"
#include "text/utf8.h"

namespace {

void require(bool claim) {
  if (!claim) std::abort();
}

// Ill-formed UTF-8 is mended once: what comes out has nothing left to mend, and encodes to the same ids.
void encode(const stoker::text::Tokenizer& tokenizer, std::string_view text) {
  std::vector<std::int32_t> ids;
  const auto counts = tokenizer.encode(text, {}, ids);
  for (const std::int32_t id : ids) require(id >= 0 && id < tokenizer.vocab_size());

  std::string repaired;
  std::vector<stoker::text::ByteSpan> spans{{0, text.size()}};
  require(stoker::text::repair_utf8(text, repaired, spans) == counts.replaced);
  require((counts.replaced == 0) == stoker::text::is_valid_utf8(text));
  require(stoker::text::is_valid_utf8(repaired));
  require(spans.size() == 1 && spans[0].begin == 0 && spans[0].end == repaired.size());
  std::vector<std::int32_t> again;
  require(tokenizer.encode(repaired, {}, again).replaced == 0);
  require(ids == again);

  // Added tokens cut, so chunks that begin with one have the ids of the whole.
  const std::size_t half = text.size() / 2;
  const std::string first = "<|im_start|>" + std::string(text.substr(0, half));
  const std::string second = "<|im_start|>" + std::string(text.substr(half));
  std::vector<std::int32_t> whole, chunks;
  tokenizer.encode(first + second, {}, whole);
  tokenizer.encode(first, {}, chunks);
  tokenizer.encode(second, {}, chunks);
  require(whole == chunks);

  // In content no guarded token is ever recognised; a range over text without one changes nothing.
  const stoker::text::ByteSpan all{0, text.size()};
  std::vector<std::int32_t> literal;
  const bool has_control = tokenizer.encode(text, {&all, 1}, literal).control_literals > 0;
  require(has_control || literal == ids);
  const std::int32_t turn_end = tokenizer.token_id("<|im_end|>").value_or(-1);
  for (const std::int32_t id : literal) require(id != turn_end);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const auto tokenizer = stoker::text::Tokenizer::load(STOKER_TESTDATA "/qwen3-vl/tokenizer.json");
  require(tokenizer.ok());
  encode(**tokenizer, {reinterpret_cast<const char*>(data), size});
  return 0;
}

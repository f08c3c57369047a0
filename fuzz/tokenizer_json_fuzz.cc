// A checkpoint's tokenizer.json: refused with the field that does not fit, or a tokenizer that encodes any text and
// gives it back.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace {

void require(bool claim) {
  if (!claim) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  const auto tokenizer = stoker::text::Tokenizer::parse(json, "fuzzed");
  if (!tokenizer.ok()) {
    require(tokenizer.status().reason() == stoker::Reason::kTokenizer);
    return 0;
  }
  const std::string text =
      "two words <|im_start|>\n\t\xC3\xA9\xE4\xB8\xAD 12 the abab";  // in NFC, so it comes back as it is
  std::vector<std::int32_t> ids;
  require((*tokenizer)->encode(text, {}, ids).replaced == 0);
  for (const std::int32_t id : ids) require(id >= 0 && id < (*tokenizer)->vocab_size());
  std::string back;
  (*tokenizer)->decode(ids, back);
  require(back == text);
  return 0;
}

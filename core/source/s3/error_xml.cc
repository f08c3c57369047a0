#include "source/s3/error_xml.h"

#include <algorithm>
#include <array>
#include <utility>

namespace stoker {
namespace {

constexpr std::size_t kMaxBody = 16 * 1024;
constexpr std::size_t kMaxField = 512;

bool is_name_end(char c) { return c == '>' || c == '/' || c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

// Enough of XML for one flat element list: comments, declarations and CDATA do not occur in what S3 sends, and are
// skipped or shown raw.
struct Scanner {
  std::string_view rest;

  // Moves past the next tag and gives its name ("/Code" for an end); empty at the end of the text. `before` is the text
  // in front of it.
  std::string_view next_tag(std::string_view& before) {
    const std::size_t open = rest.find('<');
    const std::size_t close = open == std::string_view::npos ? open : rest.find('>', open);
    if (close == std::string_view::npos) {
      before = rest;
      rest = {};
      return {};
    }
    before = rest.substr(0, open);
    const std::string_view inner = rest.substr(open + 1, close - open);
    rest.remove_prefix(close + 1);
    std::size_t n = inner.front() == '/' ? 1 : 0;
    while (n < inner.size() && !is_name_end(inner[n])) ++n;
    return inner.substr(0, n);
  }
};

std::string plain(std::string_view text) {
  static constexpr std::array<std::pair<std::string_view, char>, 5> kEntities = {
      {{"&amp;", '&'}, {"&lt;", '<'}, {"&gt;", '>'}, {"&quot;", '"'}, {"&apos;", '\''}}};
  text = text.substr(0, kMaxField);
  std::string out;
  while (!text.empty()) {
    const auto* entity = std::find_if(kEntities.begin(), kEntities.end(),
                                      [&](const auto& e) { return text.substr(0, e.first.size()) == e.first; });
    if (entity != kEntities.end()) {
      out += entity->second;
      text.remove_prefix(entity->first.size());
      continue;
    }
    const auto byte = static_cast<unsigned char>(text.front());
    out += byte < 0x20 || byte == 0x7F ? ' ' : text.front();
    text.remove_prefix(1);
  }
  return out;
}

}  // namespace

S3Error parse_s3_error(std::string_view body) {
  S3Error error;
  Scanner scanner{body.substr(0, kMaxBody)};
  std::string_view before;
  std::string_view tag;
  do {
    tag = scanner.next_tag(before);
    if (tag.empty() && scanner.rest.empty()) return error;
  } while (tag != "Error");

  const std::array<std::pair<std::string_view, std::string*>, 4> fields = {
      {{"Code", &error.code}, {"Message", &error.message}, {"Region", &error.region}, {"Endpoint", &error.endpoint}}};
  while (!scanner.rest.empty()) {
    const std::string_view name = scanner.next_tag(before);
    if (name == "/Error") break;
    const auto* field = std::find_if(fields.begin(), fields.end(), [&](const auto& f) { return f.first == name; });
    if (field == fields.end()) continue;
    const std::string_view end = scanner.next_tag(before);
    if (end.size() == name.size() + 1 && end.front() == '/' && end.substr(1) == name && field->second->empty())
      *field->second = plain(before);
  }
  return error;
}

}  // namespace stoker

#include "text/foreign_template.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "text/tokenizer.h"

namespace stoker::text {
namespace {

constexpr std::string_view kTurnStart = "<|im_start|>";
constexpr std::string_view kTurnEnd = "<|im_end|>";
constexpr std::array<Role, 5> kRoles = {Role::kSystem, Role::kUser, Role::kAssistant, Role::kTool, Role::kDeveloper};

void append_string(std::string_view text, std::string& out) {
  out += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  out += '"';
}

void append_content(const Turn& turn, std::string& out) {
  if (turn.parts.empty()) {
    out += "\"\"";
    return;
  }
  // A lone empty text came in a list, which a template takes for content where it takes an empty string for none.
  if (turn.parts.size() == 1 && turn.parts[0].kind == Part::Kind::kText && !turn.parts[0].text.empty()) {
    return append_string(turn.parts[0].text, out);
  }
  char before = '[';
  for (const Part& part : turn.parts) {
    out += before;
    before = ',';
    switch (part.kind) {
      case Part::Kind::kText:
      case Part::Kind::kBox:
        out += "{\"type\": \"text\", \"text\": ";
        append_string(part.text, out);
        out += '}';
        break;
      case Part::Kind::kImage:
        out += "{\"type\": \"image\"}";
        break;
      case Part::Kind::kVideo:
        out += "{\"type\": \"video\"}";
        break;
    }
  }
  out += ']';
}

void append_turn(const Turn& turn, std::string& out) {
  out += "{\"role\": ";
  append_string(name_of(turn.role), out);
  out += ", \"content\": ";
  append_content(turn, out);
  if (!turn.tool_calls.empty()) {
    char before = '[';
    out += ", \"tool_calls\": ";
    for (const ToolCall& call : turn.tool_calls) {
      out += before;
      before = ',';
      out += "{\"type\": \"function\", \"function\": {\"name\": ";
      append_string(call.name, out);
      out += ", \"arguments\": ";
      append_string(call.arguments, out);
      out += "}}";
    }
    out += ']';
  }
  out += '}';
}

/// Whether `rest`, up to the quotation mark that ends its JSON string, begins a guarded token or is the begin of one.
bool may_be_guarded(std::string_view rest) {
  for (const std::string_view token : Tokenizer::guarded()) {
    std::size_t n = 0;
    while (n < token.size() && n < rest.size() && rest[n] == token[n]) ++n;
    if (n == token.size() || (n > 0 && n < rest.size() && rest[n] == '"')) return true;
  }
  return false;
}

/// A code point that is no character (U+FDD0 to U+FDEF) and is not in `text`.
std::optional<std::string> unused_mark(std::string_view text) {
  for (unsigned i = 0; i < 32; ++i) {
    const unsigned low = 0x90 + i;  // U+FDD0 is EF B7 90
    std::string mark = {static_cast<char>(0xEF), static_cast<char>(0xB7), static_cast<char>(low)};
    if (text.find(mark) == std::string_view::npos) return mark;
  }
  return std::nullopt;
}

std::string marked(std::string_view request, std::string_view mark) {
  std::string out;
  out.reserve(request.size() + 16);
  for (std::size_t at = 0; at < request.size();) {
    const std::size_t next = request.find('<', at);
    if (next == std::string_view::npos) return out.append(request.substr(at));
    out.append(request.substr(at, next + 1 - at));
    if (may_be_guarded(request.substr(next))) out += mark;
    at = next + 1;
  }
  return out;
}

/// Takes the marks out of `text`. @return The byte before each.
std::vector<ByteSpan> take_marks(std::string& text, std::string_view mark) {
  std::vector<ByteSpan> spans;
  if (text.find(mark) == std::string::npos) return spans;
  std::string out;
  std::size_t at = 0;
  for (std::size_t next; (next = text.find(mark, at)) != std::string::npos; at = next + mark.size()) {
    out.append(text, at, next - at);
    if (!out.empty() && (spans.empty() || spans.back().end < out.size())) spans.push_back({out.size() - 1, out.size()});
  }
  out.append(text, at);
  text = std::move(out);
  return spans;
}

/// Cuts a rendered text into chunks.
class Cutter {
 public:
  Cutter(const Sample& sample, std::string_view text, const std::vector<ByteSpan>& content)
      : sample_(sample), text_(text), content_(content) {}

  std::vector<RenderedTurn> cut() && {
    std::size_t begin = 0;
    while (begin < text_.size()) {
      const std::size_t end = find(kTurnStart, begin + 1);
      add(begin, std::min(end, text_.size()));
      begin = end;
    }
    name_turns();
    return std::move(chunks_);
  }

 private:
  bool is_from_row(std::size_t at) const {
    const auto found = first_from(at);
    return found != content_.end() && found->begin == at;
  }
  std::vector<ByteSpan>::const_iterator first_from(std::size_t at) const {
    return std::lower_bound(content_.begin(), content_.end(), at,
                            [](const ByteSpan& span, std::size_t begin) { return span.begin < begin; });
  }
  /// The next place at or after `from` where the template wrote `token`.
  std::size_t find(std::string_view token, std::size_t from) const {
    std::size_t at = text_.find(token, from);
    while (at != std::string_view::npos && is_from_row(at)) at = text_.find(token, at + 1);
    return at;
  }

  void add(std::size_t begin, std::size_t end) {
    RenderedTurn& chunk = chunks_.emplace_back();
    chunk.text = text_.substr(begin, end - begin);
    chunk.is_cut = true;
    for (auto span = first_from(begin); span != content_.end() && span->end <= end; ++span) {
      chunk.content.push_back({span->begin - begin, span->end - begin});
    }
    const std::size_t turn_end = find(kTurnEnd, begin);
    if (turn_end < end) chunk.end_bytes = turn_end + kTurnEnd.size() - begin;
    add_media(begin, end, chunk);
    if (chunk.text.compare(0, kTurnStart.size(), kTurnStart) != 0) return;
    const std::string_view printed = std::string_view(chunk.text).substr(kTurnStart.size());
    const std::string_view name = printed.substr(0, printed.find('\n'));
    chunk.role = name.size() < printed.size() ? role_named(name) : std::nullopt;
    if (chunk.role) chunk.header_bytes = kTurnStart.size() + name.size();
    chunk.is_assistant = chunk.role == Role::kAssistant;
  }

  void add_media(std::size_t begin, std::size_t end, RenderedTurn& chunk) {
    const auto take = [&](MediaKind kind, std::size_t& next) {
      while (next < sample_.media.size() && sample_.media[next].kind != kind) ++next;
      if (next < sample_.media.size()) chunk.media.push_back(static_cast<std::uint32_t>(next++));
    };
    for (std::size_t at = find("<|", begin); at < end; at = find("<|", at + 1)) {
      if (text_.substr(at).starts_with("<|image_pad|>")) take(MediaKind::kImage, next_image_);
      if (text_.substr(at).starts_with("<|video_pad|>")) take(MediaKind::kVideo, next_video_);
    }
  }

  void name_turns() {
    for (const Role role : kRoles) {
      std::vector<std::uint32_t> turns;
      for (std::size_t i = 0; i < sample_.turns.size(); ++i) {
        if (sample_.turns[i].role == role) turns.push_back(static_cast<std::uint32_t>(i));
      }
      std::vector<RenderedTurn*> printed;
      for (RenderedTurn& chunk : chunks_) {
        if (chunk.role == role) printed.push_back(&chunk);
      }
      if (printed.size() != turns.size()) continue;
      for (std::size_t i = 0; i < turns.size(); ++i) {
        printed[i]->turn = turns[i];
        printed[i]->n_turns = 1;
      }
    }
  }

  const Sample& sample_;
  const std::string_view text_;
  const std::vector<ByteSpan>& content_;
  std::vector<RenderedTurn> chunks_;
  std::size_t next_image_ = 0, next_video_ = 0;
};

}  // namespace

std::string render_request(const Sample& sample, RenderOptions options) {
  std::string out = "{\"messages\": ";
  char before = '[';
  for (const Turn& turn : sample.turns) {
    out += before;
    before = ',';
    append_turn(turn, out);
  }
  out += "], \"tools\": ";
  before = '[';
  for (const std::string& tool : sample.tools) {
    out += before;
    before = ',';
    out += tool;
  }
  out += sample.tools.empty() ? "null" : "]";
  out += fmt::format(", \"add_generation_prompt\": {}, \"add_vision_id\": {}}}", options.add_generation_prompt,
                     options.add_vision_id);
  std::string repaired;
  std::vector<ByteSpan> none;
  if (!is_valid_utf8(out) && repair_utf8(out, repaired, none) > 0) return repaired;
  return out;
}

Result<Rendered> render_foreign(const TurnRenderer& renderer, const Sample& sample, RenderOptions options) {
  const std::string request = render_request(sample, options);
  const std::optional<std::string> mark = unused_mark(request);
  if (!mark) {
    return Status(
        Reason::kTemplateFailed,
        "the row's text uses every code point from U+FDD0 to U+FDEF, none is left to mark control tokens with");
  }
  STOKER_TRY(std::string text, renderer.render(marked(request, *mark)));
  const std::vector<ByteSpan> content = take_marks(text, *mark);
  Rendered out;
  out.chunks = Cutter(sample, text, content).cut();
  return out;
}

}  // namespace stoker::text

#include "model/qwen_vl/clip_text.h"

#include <algorithm>
#include <cstddef>

namespace stoker::qwen_vl {
namespace {

constexpr std::string_view kStart = "<|vision_start|>";
constexpr std::string_view kPad = "<|video_pad|>";
constexpr std::string_view kEnd = "<|vision_end|>";

bool is_content(const std::vector<text::ByteSpan>& content, std::size_t begin, std::size_t end) {
  return std::any_of(content.begin(), content.end(),
                     [&](const text::ByteSpan& span) { return begin < span.end && end > span.begin; });
}

/// Moves the spans behind `at` by `by` bytes.
void shift(std::vector<text::ByteSpan>& content, std::size_t at, std::ptrdiff_t by) {
  for (text::ByteSpan& span : content) {
    if (span.begin < at) continue;
    span.begin = static_cast<decltype(span.begin)>(static_cast<std::ptrdiff_t>(span.begin) + by);
    span.end = static_cast<decltype(span.end)>(static_cast<std::ptrdiff_t>(span.end) + by);
  }
}

}  // namespace

std::size_t write_clip_times(text::RenderedTurn& turn, const std::vector<std::vector<std::string>>& times,
                             ClipText form, bool is_raw) {
  std::size_t n_found = 0;
  for (std::size_t at = turn.text.find(kPad); at != std::string::npos; at = turn.text.find(kPad, at)) {
    std::size_t begin = at;
    std::size_t end = at + kPad.size();
    if (!is_raw && is_content(turn.content, begin, end)) {
      at = end;
      continue;
    }
    if (n_found == times.size()) break;
    const std::string_view text = turn.text;
    if (form == ClipText::kReplacesTriplet && text.substr(0, begin).ends_with(kStart) &&
        text.substr(end).starts_with(kEnd)) {
      begin -= kStart.size();
      end += kEnd.size();
    }
    std::string written;
    for (const std::string& time : times[n_found]) written.append(time).append(kStart).append(kPad).append(kEnd);
    turn.text.replace(begin, end - begin, written);
    const auto by = static_cast<std::ptrdiff_t>(written.size()) - static_cast<std::ptrdiff_t>(end - begin);
    shift(turn.content, end, by);
    if (turn.end_bytes >= end) {
      turn.end_bytes = static_cast<std::size_t>(static_cast<std::ptrdiff_t>(turn.end_bytes) + by);
    }
    at = begin + written.size();
    ++n_found;
  }
  return n_found;
}

}  // namespace stoker::qwen_vl

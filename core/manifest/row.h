#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "data/sample.h"
#include "manifest/json.h"

namespace stoker {

struct RowOptions {
  JsonOptions json;
};

/// What a row says beside its sample.
struct RowNotes {
  std::string id;                   ///< the row's `id`, string or number, as text: for people, never an identity
  std::uint32_t text_replaced = 0;  ///< halves of surrogate pairs that became U+FFFD
};

/// One JSONL line as a Sample. Two forms, freely mixed in one file; `null` is the same as absent everywhere:
///
///   {"messages": [{"role": "user", "content": "..." or [parts]}, ...], "images": ["a.png"]}
///   {"conversations": [{"from": "human", "value": "<image>\n..."}, ...], "image": "a.png"}
///
/// - Roles: system; user, human; assistant, gpt, model; tool, function, observation. Others are ROLE_UNKNOWN.
/// - In a string, each `<image>` takes the row's next image, and the text around it is kept to the last blank. In a
/// list of
///   parts, text is only text, an image part brings its own reference or, without one, takes the row's next image.
///   The row's images must be used up exactly (MEDIA_COUNT). `<video>` in a string is text.
/// - `image`, `images`: a string, an object {image|path|url, width, height}, or a list of these. References are passed
/// on as they are;
///   {"source": {"type": "base64", ...}} becomes a data: URL.
/// - `width`, `height`: beside a reference, or in the row: numbers for a single image, lists parallel to the row's
/// images. Below 1: unknown.
/// - `tools`: a list, or a string that holds one. `tool_calls` of an assistant: {"name", "arguments"}, bare or under
/// "function".
///
/// @param line  Without its line end; borrowed for the call.
/// @return JSON_*, ROW_SCHEMA, ROW_AMBIGUOUS, ROLE_UNKNOWN, PART_TYPE, MEDIA_COUNT; MEDIA_UNSUPPORTED for video and
/// audio. The message says
///         where in the row; the caller adds file and line.
/// Threads: any; keeps one parser per thread.
Result<Sample> parse_row(std::string_view line, const RowOptions& options = {}, RowNotes* notes = nullptr);

}  // namespace stoker

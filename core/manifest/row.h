#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "data/sample.h"
#include "manifest/json.h"
#include "manifest/row_options.h"

namespace stoker {

/// What a row says beside its sample.
struct RowNotes {
  std::string id;                        ///< the row's `id`, string or number, as text: for people, never an identity
  std::uint32_t text_replaced = 0;       ///< halves of surrogate pairs that became U+FFFD
  RowShape row_shape = RowShape::kAuto;  ///< which one the row has; kAuto if that was never found out
};

/// One JSONL line as a Sample. Shapes may be mixed in one file; which one a row has is decided by its keys alone, and a
/// row that fits two is refused. `null` is the same as absent everywhere.
///
///   messages           {"messages": [{"role": "user", "content": "..." or [parts]}, ...], "images": ["a.png"]}
///   conversations      {"conversations": [{"from": "human", "value": "<image>\n..."}, ...], "image": "a.png"}
///   prompt-completion  {"prompt": "..." or [messages], "completion": "..." or [messages]}
///   query-response     {"query": "...", "response": "...", "history": [["...", "..."]], "system": "..."}
///   instruction        {"instruction": "...", "input": "...", "output": "...", "history": ..., "system": "..."}
///
/// - Roles: system; developer; user, human; assistant, gpt, model; tool, function, observation, tool_response;
///   tool_call, function_call. Others are ROLE_UNKNOWN, unless `options.roles` knows them.
/// - In a string, each `<image>` and `<video>` takes the row's next image or clip, and the text around it is kept to
/// the
///   last blank. In a list of parts, text is only text; an image part brings its own reference or, without one, takes
///   the row's next image. The row's media must be used up exactly (MEDIA_COUNT).
/// - `image`, `images`: a string, an object {image|path|url|base64, width, height, min_pixels, max_pixels,
///   resized_height, resized_width}, or a list of these. References are passed on as they are; {"source": {"type":
///   "base64", ...}} and {"base64": ...} become a data: URL.
/// - `video`, `videos`: a clip is a list of pictures, or {"video": [...], "fps": 2}. A video file is MEDIA_UNSUPPORTED.
/// - `width`, `height`: beside a reference, or in the row: numbers for a single image, lists parallel to the row's
///   images. Below 1: unknown.
/// - `objects`: see RowBoxes. `loss`, `loss_scale`, `weight` of a turn: Turn::loss_scale.
/// - In prompt-completion rows only the completion is trained, unless a turn of the prompt says otherwise itself.
/// - `tools`: a list, or a string that holds one. `tool_calls` of an assistant: {"name", "arguments"}, bare or under
///   "function".
///
/// @param line  Without its line end; borrowed for the call.
/// @return JSON_*, ROW_SCHEMA, ROW_AMBIGUOUS, ROLE_UNKNOWN, PART_TYPE, MEDIA_COUNT, MEDIA_UNSUPPORTED. The message says
///         where in the row; the caller adds file and line.
/// Threads: any; keeps one parser per thread.
Result<Sample> parse_row(std::string_view line, const RowOptions& options = {}, RowNotes* notes = nullptr);

}  // namespace stoker

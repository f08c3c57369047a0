#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "model/profile.h"
#include "text/chat_template.h"

namespace stoker::qwen_vl {

/// Puts the times of clips into a rendered turn, before it is tokenised: a `<|video_pad|>` that the template wrote
/// becomes, for each time, `<t seconds><|vision_start|><|video_pad|><|vision_end|>`; what it leaves of the template's
/// own pair is ClipText's. One video pad per time is left, to be expanded by the frame's size.
///
/// @param times   Of each clip of the turn, in order: texts as timestamp_text() makes them.
/// @param is_raw  Content's own pads count, too, as they do for a processor that sees only the rendered text.
/// @return The number of clips that pads were found for; texts of more pads than `times` stay as they are.
std::size_t write_clip_times(text::RenderedTurn& turn, const std::vector<std::vector<std::string>>& times,
                             ClipText form, bool is_raw);

}  // namespace stoker::qwen_vl

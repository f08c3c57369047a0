#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "data/sample.h"
#include "text/chat_template.h"
#include "text/turn_renderer.h"

namespace stoker::text {

/// Renders with code that returns nothing but text, and finds out where the row's control tokens and turns lie in it.
///
/// Guarding: an unseen mark, a code point that is no character and that the row does not contain, goes behind each `<`
/// of the row that begins a guarded token or, at the end of a string, a part of one. The template carries it along like
/// any other letter; in its output each mark says that the `<` before it comes from the row, and is taken out again. A
/// template never sees a difference unless it looks for control tokens in content.
///
/// Turns: the text is cut at each <|im_start|> that is not the row's. The roles are the printed ones. A printed turn is
/// the row's n-th of its role if there are as many of that role in the row, else it is nobody's.
///
/// @return What the renderer returns; TEMPLATE_FAILED if the row holds every possible mark.
Result<Rendered> render_foreign(const TurnRenderer& renderer, const Sample& sample, RenderOptions options);

/// The request that a renderer gets.
std::string render_request(const Sample& sample, RenderOptions options);

}  // namespace stoker::text

#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "metric/metric.h"
#include "model/qwen_vl/family.h"
#include "model/qwen_vl/labels.h"
#include "text/chat_template.h"
#include "text/turn_renderer.h"

namespace stoker {

/// What the settings say as words. Unknown ones are a SETTINGS error.
qwen_vl::LabelRule label_rule(const std::string& train_on, const std::vector<std::string>& roles,
                              const std::string& end_of_turn, const std::string& weights);
std::optional<qwen_vl::BoxForm> box_form_named(const std::string& name);
text::TemplateEngine template_engine_named(const std::string& name);

/// Renderers behind a Python callable: `make(text, folder)` returns `render(request) -> (reason or "", text)`. `stage`
/// counts the renderings, the time in them, and the time waited for the interpreter's lock. Threads: any, without the
/// lock.
text::TurnRendererFactory python_renderers(nanobind::callable make, std::shared_ptr<StageClock> stage);

}  // namespace stoker

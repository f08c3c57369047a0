#include "text_options.h"

#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/string.h>

#include <utility>

#include "base/clock.h"
#include "bind.h"
#include "held.h"

namespace nb = nanobind;

namespace stoker {
namespace {

/// With the lock held. Errors of ours keep their reason.
Status status_of(nb::python_error& error) {
  Status status(Reason::kTemplateFailed, std::string("the chat template's renderer fails: ") + error.what());
  const nb::handle value = error.value();
  if (nb::hasattr(value, "code") && nb::hasattr(value, "message")) {
    const auto reason = reason_named(nb::cast<std::string>(nb::str(value.attr("code"))));
    if (reason) status = Status(*reason, nb::cast<std::string>(nb::str(value.attr("message"))));
  }
  return status;
}

class PythonRenderer final : public text::TurnRenderer {
 public:
  PythonRenderer(nb::object render, std::shared_ptr<StageClock> stage)
      : render_(std::move(render)), stage_(std::move(stage)) {}

  Result<std::string> render(std::string_view request) const override {
    const Clock& clock = Clock::real();
    const Nanos asked = clock.now();
    nb::gil_scoped_acquire lock;
    const Nanos began = clock.now();
    stage_->wait_in_ns.add((began - asked).count());
    Result<std::string> rendered = call(request);
    stage_->busy_ns.add((clock.now() - began).count());
    stage_->items.add(1);
    return rendered;
  }

 private:
  Result<std::string> call(std::string_view request) const {
    try {
      const nb::object answer = render_.get()(nb::str(request.data(), request.size()));
      const auto reason = nb::cast<std::string>(answer[0]);
      auto text = nb::cast<std::string>(answer[1]);
      if (reason.empty()) return text;
      return Status(reason_named(reason).value_or(Reason::kTemplateFailed), std::move(text));
    } catch (nb::python_error& error) {
      return status_of(error);
    } catch (const nb::cast_error&) {
      return Status(Reason::kTemplateFailed, "the chat template's renderer returns something else than texts");
    }
  }

  const Held render_;
  const std::shared_ptr<StageClock> stage_;
};

[[noreturn]] void refuse(const std::string& what, const std::string& found) {
  throw_status(Status(Reason::kSettings, what + " does not take " + found));
}

}  // namespace

qwen_vl::LabelRule label_rule(const std::string& train_on, const std::vector<std::string>& roles,
                              const std::string& end_of_turn, const std::string& weights) {
  qwen_vl::LabelRule rule;
  if (train_on == "all") {
    rule.train_on = qwen_vl::TrainOn::kAll;
  } else if (train_on == "last_turn") {
    rule.train_on = qwen_vl::TrainOn::kLastTurn;
  } else if (train_on != "assistant") {
    refuse("labels.train_on", train_on);
  }
  if (end_of_turn == "token") {
    rule.end_of_turn = qwen_vl::EndOfTurn::kToken;
  } else if (end_of_turn == "none") {
    rule.end_of_turn = qwen_vl::EndOfTurn::kNone;
  } else if (end_of_turn != "full") {
    refuse("labels.end_of_turn", end_of_turn);
  }
  if (weights == "deliver") {
    rule.weights = qwen_vl::LossWeights::kDeliver;
  } else if (weights != "reject") {
    refuse("labels.weights", weights);
  }
  rule.roles = 0;
  for (const std::string& name : roles) {
    const std::optional<Role> role = text::role_named(name);
    if (!role) refuse("labels.roles", name);
    rule.roles |= static_cast<std::uint8_t>(1U << static_cast<unsigned>(*role));
  }
  return rule;
}

std::optional<qwen_vl::BoxForm> box_form_named(const std::string& name) {
  if (name == "auto") return std::nullopt;
  if (name == "marks") return qwen_vl::BoxForm::kMarks;
  if (name == "list") return qwen_vl::BoxForm::kList;
  refuse("box_text", name);
}

text::TemplateEngine template_engine_named(const std::string& name) {
  if (name == "auto") return text::TemplateEngine::kAuto;
  if (name == "native") return text::TemplateEngine::kNative;
  if (name == "jinja") return text::TemplateEngine::kJinja;
  if (name == "check") return text::TemplateEngine::kCheck;
  refuse("template", name);
}

text::TurnRendererFactory python_renderers(nb::callable make, std::shared_ptr<StageClock> stage) {
  auto held = std::make_shared<const Held>(nb::object(std::move(make)));
  return [held = std::move(held), stage = std::move(stage)](
             std::string_view template_text,
             const std::filesystem::path& folder) -> Result<std::shared_ptr<const text::TurnRenderer>> {
    nb::gil_scoped_acquire lock;
    try {
      nb::object render = held->get()(nb::str(template_text.data(), template_text.size()), folder.string());
      return std::shared_ptr<const text::TurnRenderer>(std::make_shared<PythonRenderer>(std::move(render), stage));
    } catch (nb::python_error& error) {
      return status_of(error);
    }
  };
}

}  // namespace stoker

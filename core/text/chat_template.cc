#include "text/chat_template.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <optional>
#include <sstream>
#include <utility>

#include "base/hash.h"
#include "text/foreign_template.h"
#include "text/templates/native_template.h"

namespace stoker::text {
namespace {

constexpr std::array<std::string_view, 5> kRoleNames = {"system", "user", "assistant", "tool", "developer"};  // by Role

std::optional<std::string> read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  if (!file || !(content << file.rdbuf())) return std::nullopt;
  return std::move(content).str();
}

/// The value of "chat_template": a string, or in a list of named ones the one called "default".
std::optional<std::string> template_in(const std::string& json) {
  simdjson::dom::parser parser;
  simdjson::dom::element found;
  std::string_view text;
  if (parser.parse(json)["chat_template"].get(found)) return std::nullopt;
  if (!found.get(text)) return std::string(text);
  simdjson::dom::array named;
  if (found.get(named)) return std::nullopt;
  for (const simdjson::dom::element one : named) {
    std::string_view name;
    if (!one["name"].get(name) && name == "default" && !one["template"].get(text)) return std::string(text);
  }
  return std::nullopt;
}

/// Jinja takes one line feed off the end of a template, so that with it is the same template.
const NativeTemplate* find_native(std::string_view text, const std::string& sha256) {
  if (const NativeTemplate* const found = find_native_template(sha256)) return found;
  return text.ends_with('\n') ? find_native_template(sha256_hex(text.substr(0, text.size() - 1))) : nullptr;
}

Status unknown(std::string_view name, const std::string& sha256, TemplateEngine engine) {
  std::string known;
  for (const NativeTemplate& one : native_templates()) {
    known += fmt::format("{}{} ({}...)", known.empty() ? "" : ", ", one.name, one.sha256.substr(0, 8));
  }
  const std::string_view advice = engine == TemplateEngine::kNative || engine == TemplateEngine::kCheck
                                      ? "set template: auto to have it rendered by jinja2"
                                      : "install jinja2 to have it rendered by that: pip install 'stoker[jinja]'";
  return {Reason::kTemplateUnknown,
          fmt::format("{}: the template with SHA-256 {} is not one that is rendered natively ({}); {}", name, sha256,
                      known, advice)};
}

/// The text around byte `at`, on one line.
std::string excerpt(std::string_view text, std::size_t at) {
  std::string out;
  const std::size_t begin = at < 20 ? 0 : at - 20;
  for (const char c : text.substr(std::min(begin, text.size()), 48)) {
    if (c == '\n') {
      out += "\\n";
    } else {
      out += static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7F ? '?' : c;
    }
  }
  return out;
}

Status compare(const Rendered& native, const Rendered& jinja) {
  const std::string ours = native.text();
  const std::string theirs = jinja.text();
  if (ours == theirs) return {};
  std::size_t at = 0;
  while (at < ours.size() && at < theirs.size() && ours[at] == theirs[at]) ++at;
  return {Reason::kTemplateDiffers,
          fmt::format("the native rendering and jinja2's differ from byte {} on: native `{}`, jinja2 `{}`; set "
                      "template: jinja to go on with jinja2's, and please report it",
                      at, excerpt(ours, at), excerpt(theirs, at))};
}

}  // namespace

std::string_view name_of(Role role) { return kRoleNames[static_cast<std::size_t>(role)]; }

std::optional<Role> role_named(std::string_view name) {
  for (std::size_t i = 0; i < kRoleNames.size(); ++i) {
    if (kRoleNames[i] == name) return static_cast<Role>(i);
  }
  return std::nullopt;
}

std::string Rendered::text() const {
  std::string out;
  for (const RenderedTurn& chunk : chunks) out += chunk.text;
  return out;
}

Result<ChatTemplate> ChatTemplate::load(const std::filesystem::path& model, TemplateEngine engine,
                                        const TurnRendererFactory& make_renderer) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(model, ignored)) {
    const auto text = read_file(model);
    if (!text) return Status(Reason::kModelFolder, "cannot read " + model.string());
    return from_text(*text, model.string(), engine, make_renderer, model.parent_path());
  }
  const auto jinja = model / "chat_template.jinja";
  if (const auto text = read_file(jinja)) return from_text(*text, jinja.string(), engine, make_renderer, model);
  for (const char* const name : {"chat_template.json", "tokenizer_config.json"}) {
    const auto json = read_file(model / name);
    if (!json) continue;
    if (const auto text = template_in(*json)) {
      return from_text(*text, (model / name).string(), engine, make_renderer, model);
    }
  }
  return Status(Reason::kModelFolder,
                "no chat template in " + model.string() +
                    ": neither chat_template.jinja nor \"chat_template\" in chat_template.json or "
                    "tokenizer_config.json");
}

Result<ChatTemplate> ChatTemplate::from_text(std::string_view text, std::string_view name, TemplateEngine engine,
                                             const TurnRendererFactory& make_renderer,
                                             const std::filesystem::path& folder) {
  ChatTemplate made;
  made.fingerprint_ = sha256_hex(text);
  if (engine != TemplateEngine::kJinja) made.native_ = find_native(text, made.fingerprint_);
  const bool wants_native = engine == TemplateEngine::kNative || engine == TemplateEngine::kCheck;
  if (wants_native && made.native_ == nullptr) return unknown(name, made.fingerprint_, engine);
  if (engine == TemplateEngine::kCheck || made.native_ == nullptr) {
    if (!make_renderer) return unknown(name, made.fingerprint_, TemplateEngine::kAuto);
    auto renderer = make_renderer(text, folder);
    if (!renderer.ok()) return std::move(renderer).status().with(name);
    made.renderer_ = std::move(renderer).value();
  }
  return made;
}

Result<Rendered> ChatTemplate::render(const Sample& sample, RenderOptions options) const {
  if (sample.turns.empty()) return Status(Reason::kRowSchema, "the conversation has no turn");
  if (native_ == nullptr) return render_foreign(*renderer_, sample, options);
  Rendered native = native_->render(sample, options);
  if (renderer_ != nullptr) {
    STOKER_TRY(const Rendered jinja, render_foreign(*renderer_, sample, options));
    STOKER_CHECKED(compare(native, jinja));
  }
  return native;
}

}  // namespace stoker::text

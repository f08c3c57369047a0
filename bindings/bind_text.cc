#include <nanobind/ndarray.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <filesystem>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "array_of.h"
#include "bind.h"
#include "data/sample.h"
#include "manifest/row.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"
#include "text_options.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace stoker {
namespace {

using Ids = nb::ndarray<nb::numpy, std::int32_t, nb::ndim<1>>;

/// A str as UTF-8; lone surrogates, which a str may hold, keep their three-byte form for the engine to replace.
class Utf8 {
 public:
  explicit Utf8(nb::handle text) {
    Py_ssize_t n_bytes = 0;
    const char* data = PyUnicode_AsUTF8AndSize(text.ptr(), &n_bytes);
    if (data == nullptr) {
      PyErr_Clear();
      encoded_ = nb::steal(PyUnicode_AsEncodedString(text.ptr(), "utf-8", "surrogatepass"));
      if (!encoded_.is_valid()) nb::raise_python_error();
      char* bytes = nullptr;
      if (PyBytes_AsStringAndSize(encoded_.ptr(), &bytes, &n_bytes) != 0) nb::raise_python_error();
      data = bytes;
    }
    view_ = {data, static_cast<std::size_t>(n_bytes)};
  }
  std::string_view view() const { return view_; }

 private:
  nb::object encoded_;
  std::string_view view_;  // of the str itself, or of encoded_
};

Ids ids_array(std::vector<std::int32_t>&& ids) {
  const std::size_t n = ids.size();
  return array_of<nb::ndim<1>>(std::move(ids), {n});
}

std::vector<text::ByteSpan> spans_of(const std::vector<std::pair<std::size_t, std::size_t>>& pairs) {
  std::vector<text::ByteSpan> spans;
  for (const auto& [begin, end] : pairs) spans.push_back({begin, end});
  return spans;
}

Result<std::shared_ptr<const text::Tokenizer>> load_unlocked(const std::filesystem::path& path) {
  nb::gil_scoped_release unlocked;
  return text::Tokenizer::load(path);
}

/// Ids of all texts, one after another. The loop is here so that a benchmark measures the engine and not the
/// interpreter.
Ids encode_many(const text::Tokenizer& self, const std::vector<nb::str>& texts) {
  std::vector<Utf8> views;
  views.reserve(texts.size());
  for (const nb::str& one : texts) views.emplace_back(one);
  std::vector<std::int32_t> ids;
  {
    nb::gil_scoped_release unlocked;
    for (const Utf8& one : views) self.encode(one.view(), {}, ids);
  }
  return ids_array(std::move(ids));
}

// A conversation as the tests spell it: (role, has_content, [(kind, text or media index)], [(tool name, arguments)]).
using PlainPart = std::pair<std::string, std::string>;
using PlainTurn =
    std::tuple<std::string, bool, std::vector<PlainPart>, std::vector<std::pair<std::string, std::string>>>;

Sample sample_of(const std::vector<PlainTurn>& turns, const std::vector<std::string>& tools) {
  Sample sample;
  sample.tools = tools;
  for (const auto& [role, has_content, parts, calls] : turns) {
    Turn turn;
    turn.role = role == "system"      ? Role::kSystem
                : role == "assistant" ? Role::kAssistant
                : role == "tool"      ? Role::kTool
                : role == "developer" ? Role::kDeveloper
                                      : Role::kUser;
    turn.has_content = has_content;
    for (const auto& [kind, content] : parts) {
      Part part;
      part.kind = kind == "image" ? Part::Kind::kImage : kind == "video" ? Part::Kind::kVideo : Part::Kind::kText;
      if (part.kind == Part::Kind::kText) {
        part.text = content;
      } else {
        part.media = static_cast<std::uint32_t>(sample.media.size());
        sample.media.push_back(
            {part.kind == Part::Kind::kImage ? MediaKind::kImage : MediaKind::kVideo, content, 0, 0});
      }
      turn.parts.push_back(std::move(part));
    }
    for (const auto& [name, arguments] : calls) turn.tool_calls.push_back({name, arguments});
    sample.turns.push_back(std::move(turn));
  }
  return sample;
}

}  // namespace

void bind_text(nb::module_& m) {
  using text::ChatTemplate;
  using text::RenderedTurn;
  using text::Tokenizer;
  nb::class_<Tokenizer>(m, "Tokenizer", "The byte-level BPE tokenizer of a tokenizer.json.")
      .def(nb::new_([](const std::filesystem::path& path) {
             return std::const_pointer_cast<Tokenizer>(value_or_throw(load_unlocked(path)));
           }),
           "path"_a)
      .def(
          "encode",
          [](const Tokenizer& self, nb::str source, const std::vector<std::pair<std::size_t, std::size_t>>& literal) {
            const Utf8 utf8(source);
            const auto spans = spans_of(literal);
            std::vector<std::int32_t> ids;
            {
              nb::gil_scoped_release unlocked;
              self.encode(utf8.view(), spans, ids);
            }
            return ids_array(std::move(ids));
          },
          "text"_a, "literal"_a = std::vector<std::pair<std::size_t, std::size_t>>{},
          "Ids of a text as int32. `literal`: byte ranges of its UTF-8 in which control tokens are ordinary text.")
      .def("encode_many", encode_many, "texts"_a, "Ids of all texts, one after another, made in one go on one thread.")
      .def(
          "counts",
          [](const Tokenizer& self, nb::bytes source, const std::vector<std::pair<std::size_t, std::size_t>>& literal) {
            std::vector<std::int32_t> ids;
            const auto counts = self.encode({source.c_str(), source.size()}, spans_of(literal), ids);
            return std::tuple(ids_array(std::move(ids)), counts.replaced, counts.control_literals);
          },
          "text"_a, "literal"_a = std::vector<std::pair<std::size_t, std::size_t>>{},
          "(ids of any bytes, ill-formed sequences replaced, control tokens that stayed text).")
      .def(
          "decode_bytes",
          [](const Tokenizer& self, const std::vector<std::int32_t>& ids) {
            std::string bytes;
            self.decode(ids, bytes);
            return nb::bytes(bytes.data(), bytes.size());
          },
          "ids"_a, "The bytes that these ids stand for.")
      .def("token_id", &Tokenizer::token_id, "token"_a,
           "Id of an added token or of the entry with these bytes, or None.")
      .def_prop_ro("vocab_size", &Tokenizer::vocab_size, "One more than the largest id.")
      .def_prop_ro("fingerprint", &Tokenizer::fingerprint, "SHA-256 of the file.");

  nb::class_<RenderedTurn>(m, "RenderedTurn", "One chunk of a rendered conversation, from its <|im_start|> on.")
      .def_prop_ro("text", [](const RenderedTurn& self) { return self.text; })
      .def_prop_ro("content",
                   [](const RenderedTurn& self) {
                     std::vector<std::pair<std::size_t, std::size_t>> pairs;
                     for (const text::ByteSpan& span : self.content) pairs.emplace_back(span.begin, span.end);
                     return pairs;
                   })
      .def_ro("media", &RenderedTurn::media)
      .def_ro("is_assistant", &RenderedTurn::is_assistant)
      .def_prop_ro("role",
                   [](const RenderedTurn& self) {
                     return self.role ? std::optional(std::string(text::name_of(*self.role))) : std::nullopt;
                   })
      .def_ro("turn", &RenderedTurn::turn);

  m.def(
      "render_row",
      [](const std::filesystem::path& model, nb::bytes row, const std::string& engine, nb::callable make_renderer,
         bool add_generation_prompt, bool add_vision_id) {
        const auto factory = python_renderers(std::move(make_renderer), std::make_shared<StageClock>());
        const std::string line(row.c_str(), row.size());
        const text::TemplateEngine wanted = template_engine_named(engine);
        auto rendered = [&]() -> Result<text::Rendered> {
          nb::gil_scoped_release unlocked;
          STOKER_TRY(const ChatTemplate chat, ChatTemplate::load(model, wanted, factory));
          STOKER_TRY(const Sample sample, parse_row(line));
          return chat.render(sample, {add_generation_prompt, add_vision_id});
        }();
        text::Rendered found = value_or_throw(std::move(rendered));
        std::string left_out = found.left_out.ok() ? std::string() : found.left_out.to_string();
        return std::make_tuple(std::move(found.chunks), std::move(left_out));
      },
      "model"_a, "row"_a, nb::kw_only(), "engine"_a, "make_renderer"_a, "add_generation_prompt"_a = false,
      "add_vision_id"_a = false,
      "(chunks, what the template leaves out or \"\") of a JSONL row, rendered with a checkpoint folder's or a file's "
      "template.");

  m.def(
      "render_chat",
      [](const std::filesystem::path& model, const std::vector<PlainTurn>& turns, const std::vector<std::string>& tools,
         bool add_generation_prompt, bool add_vision_id) {
        const ChatTemplate chat = value_or_throw(ChatTemplate::load(model));
        return value_or_throw(chat.render(sample_of(turns, tools), {add_generation_prompt, add_vision_id})).chunks;
      },
      "model"_a, "turns"_a, "tools"_a, nb::kw_only(), "add_generation_prompt"_a = false, "add_vision_id"_a = false,
      "Renders a conversation given as (role, has_content, parts, tool calls) tuples with a checkpoint folder's "
      "template.");
}

}  // namespace stoker

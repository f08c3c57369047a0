#include <nanobind/stl/string.h>

#include <string>
#include <string_view>

#include "bind.h"
#include "manifest/index.h"
#include "manifest/json_text.h"
#include "manifest/row.h"

namespace nb = nanobind;

namespace stoker {
namespace {

std::string_view view(const nb::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }

const char* name_of(Role role) {
  switch (role) {
    case Role::kSystem:
      return "system";
    case Role::kUser:
      return "user";
    case Role::kAssistant:
      return "assistant";
    case Role::kTool:
      break;
  }
  return "tool";
}

nb::dict turn_to_dict(const Turn& turn) {
  nb::list parts;
  for (const Part& part : turn.parts) {
    nb::dict entry;
    if (part.kind == Part::Kind::kText) {
      entry["text"] = part.text;
    } else {
      entry[part.kind == Part::Kind::kImage ? "image" : "video"] = part.media;
    }
    parts.append(entry);
  }
  nb::list calls;
  for (const ToolCall& call : turn.tool_calls) {
    nb::dict entry;
    entry["name"] = call.name;
    entry["arguments"] = call.arguments;
    calls.append(entry);
  }
  nb::dict out;
  out["role"] = name_of(turn.role);
  out["has_content"] = turn.has_content;
  out["parts"] = parts;
  out["tool_calls"] = calls;
  return out;
}

nb::dict sample_to_dict(const Sample& sample, const RowNotes& notes) {
  nb::list turns;
  for (const Turn& turn : sample.turns) turns.append(turn_to_dict(turn));
  nb::list media;
  for (const MediaRef& ref : sample.media) {
    nb::dict entry;
    entry["reference"] = nb::bytes(ref.reference.data(), ref.reference.size());
    entry["height_px"] = ref.height_px;
    entry["width_px"] = ref.width_px;
    media.append(entry);
  }
  nb::list tools;
  for (const std::string& tool : sample.tools) tools.append(tool);
  nb::dict out;
  out["turns"] = turns;
  out["media"] = media;
  out["tools"] = tools;
  out["id"] = notes.id;
  out["text_replaced"] = notes.text_replaced;
  return out;
}

}  // namespace

void bind_manifest(nb::module_& m) {
  m.def(
      "parse_row",
      [](const nb::bytes& line, bool nonfinite_is_null) {
        RowOptions options;
        options.json.nonfinite_is_null = nonfinite_is_null;
        RowNotes notes;
        const Sample sample = value_or_throw(parse_row(view(line), options, &notes));
        return sample_to_dict(sample, notes);
      },
      nb::arg("line"), nb::kw_only(), nb::arg("nonfinite_is_null") = false, "One JSONL line as the engine reads it.");
  m.def(
      "json_text", [](const nb::bytes& text) { return value_or_throw(json_text(view(text))); }, nb::arg("text"),
      "JSON written anew as Python's json.dumps(ensure_ascii=False) writes it.");

  nb::class_<Manifest>(m, "Manifest")
      .def_static(
          "open",
          [](const std::string& path, const std::string& index_dir, std::uint64_t max_row_bytes, bool trust_stat) {
            ManifestOptions options;
            options.index_dir = index_dir;
            options.max_row_bytes = max_row_bytes;
            options.trust_stat = trust_stat;
            auto manifest = [&] {
              nb::gil_scoped_release unlocked;
              return Manifest::open(path, options);
            }();
            return value_or_throw(std::move(manifest));
          },
          nb::arg("path"), nb::kw_only(), nb::arg("index_dir") = "",
          nb::arg("max_row_bytes") = ManifestOptions{}.max_row_bytes, nb::arg("trust_stat") = true)
      .def_prop_ro("n_rows", &Manifest::n_rows)
      .def_prop_ro("size_bytes", &Manifest::size_bytes)
      .def_prop_ro("fingerprint", &Manifest::fingerprint)
      .def_prop_ro("was_scanned", &Manifest::was_scanned)
      .def(
          "row",
          [](const Manifest& self, std::uint64_t row) {
            if (row >= self.n_rows()) throw nb::index_error("row");
            const RowLocation at = self.row(row);
            return nb::make_tuple(at.offset, at.n_bytes, at.line);
          },
          nb::arg("row"), "(offset, bytes with line end, line from 1).")
      .def(
          "read",
          [](const Manifest& self, std::uint64_t row) {
            if (row >= self.n_rows()) throw nb::index_error("row");
            std::string buffer;
            auto line = [&] {
              nb::gil_scoped_release unlocked;
              return self.read(row, buffer);
            }();
            const std::string_view text = value_or_throw(std::move(line));
            return nb::bytes(text.data(), text.size());
          },
          nb::arg("row"))
      .def("describe", &Manifest::describe, nb::arg("row"))
      .def("check_unchanged", [](const Manifest& self) { check_or_throw(self.check_unchanged()); });
}

}  // namespace stoker

#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "bind.h"
#include "manifest/index.h"
#include "manifest/json_text.h"
#include "manifest/row.h"
#include "row_dict.h"
#include "text/chat_template.h"

namespace nb = nanobind;

namespace stoker {
namespace {

std::string_view view(const nb::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }

nb::dict part_to_dict(const Part& part) {
  nb::dict entry;
  switch (part.kind) {
    case Part::Kind::kText:
      entry["text"] = part.text;
      break;
    case Part::Kind::kImage:
      entry["image"] = part.media;
      break;
    case Part::Kind::kVideo:
      entry["video"] = part.media;
      break;
    case Part::Kind::kBox:
      entry["box"] = part.media;
      break;
  }
  return entry;
}

nb::dict turn_to_dict(const Turn& turn) {
  nb::list parts;
  for (const Part& part : turn.parts) parts.append(part_to_dict(part));
  nb::list calls;
  for (const ToolCall& call : turn.tool_calls) {
    nb::dict entry;
    entry["name"] = call.name;
    entry["arguments"] = call.arguments;
    calls.append(entry);
  }
  nb::dict out;
  out["role"] = str_of(text::name_of(turn.role));
  out["has_content"] = turn.has_content;
  out["parts"] = parts;
  out["tool_calls"] = calls;
  if (turn.loss_scale) out["loss_scale"] = *turn.loss_scale;
  return out;
}

nb::dict media_to_dict(const MediaRef& ref) {
  const auto bytes = [](const std::string& text) { return nb::bytes(text.data(), text.size()); };
  nb::dict entry;
  entry["reference"] = bytes(ref.reference);
  entry["height_px"] = ref.height_px;
  entry["width_px"] = ref.width_px;
  if (ref.min_pixels > 0) entry["min_pixels"] = ref.min_pixels;
  if (ref.max_pixels > 0) entry["max_pixels"] = ref.max_pixels;
  if (ref.resized_height_px > 0) entry["resized_height_px"] = ref.resized_height_px;
  if (ref.resized_width_px > 0) entry["resized_width_px"] = ref.resized_width_px;
  if (ref.kind == MediaKind::kVideo) {
    nb::list frames;
    for (const std::string& frame : ref.frames) frames.append(bytes(frame));
    entry["frames"] = frames;
    entry["frames_per_s"] = ref.frames_per_s;
    if (ref.source_frames_per_s > 0) entry["source_frames_per_s"] = ref.source_frames_per_s;
    if (ref.total_pixels > 0) entry["total_pixels"] = ref.total_pixels;
  }
  return entry;
}

}  // namespace

nb::dict row_dict(const Sample& sample, const RowNotes& notes) {
  nb::list turns;
  for (const Turn& turn : sample.turns) turns.append(turn_to_dict(turn));
  nb::list media;
  for (const MediaRef& ref : sample.media) media.append(media_to_dict(ref));
  nb::list tools;
  for (const std::string& tool : sample.tools) tools.append(tool);
  nb::list boxes;
  for (const Box& box : sample.boxes) {
    nb::dict entry;
    if (box.name.empty()) {
      nb::list points;
      for (const double x : box.points) points.append(x);
      entry["points"] = points;
      entry["media"] = box.media;
      entry["is_share_of_sides"] = box.is_share_of_sides;
    } else {
      entry["name"] = box.name;
    }
    boxes.append(entry);
  }
  nb::dict out;
  out["turns"] = turns;
  out["media"] = media;
  out["tools"] = tools;
  out["boxes"] = boxes;
  out["id"] = notes.id;
  out["text_replaced"] = notes.text_replaced;
  const std::string_view shape = name_of(notes.row_shape);
  out["row_shape"] = str_of(shape);
  return out;
}

void bind_manifest(nb::module_& m) {
  m.def(
      "parse_row",
      [](const nb::bytes& line, bool nonfinite_is_null, const std::string& shape,
         const std::map<std::string, std::string>& columns, const std::map<std::string, std::string>& roles) {
        const RowOptions options = value_or_throw(
            make_row_options(shape, {columns.begin(), columns.end()}, {roles.begin(), roles.end()}, nonfinite_is_null));
        RowNotes notes;
        const Sample sample = value_or_throw(parse_row(view(line), options, &notes));
        return row_dict(sample, notes);
      },
      nb::arg("line"), nb::kw_only(), nb::arg("nonfinite_is_null") = false, nb::arg("shape") = "auto",
      nb::arg("columns") = std::map<std::string, std::string>(),
      nb::arg("roles") = std::map<std::string, std::string>(), "One JSONL line as the engine reads it.");
  m.def(
      "json_text", [](const nb::bytes& text) { return value_or_throw(json_text(view(text))); }, nb::arg("text"),
      "JSON written anew as Python's json.dumps(ensure_ascii=False) writes it.");

  nb::class_<Manifest>(m, "Manifest")
      .def_static(
          "open",
          [](const std::string& path, const std::string& index_dir, std::uint64_t max_row_bytes, bool trust_stat,
             bool counts_rows, std::uint64_t held_out_millionths, std::string split_key) {
            ManifestOptions options;
            if (!counts_rows) options.row_numbers = RowNumbers::kOffsets;
            if (held_out_millionths > 0) options.split = SplitRule{std::move(split_key), held_out_millionths};
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
          nb::arg("max_row_bytes") = ManifestOptions{}.max_row_bytes, nb::arg("trust_stat") = true,
          nb::arg("counts_rows") = true, nb::arg("held_out_millionths") = 0, nb::arg("split_key") = "")
      .def_prop_ro("n_rows", nb::overload_cast<>(&Manifest::n_rows, nb::const_))
      .def_prop_ro("about_n_rows", &Manifest::about_n_rows)
      .def(
          "rows_of_side",
          [](const Manifest& self, bool held_out) {
            std::vector<std::uint64_t> rows;
            for (std::uint64_t k = 0; k < self.n_rows(held_out); ++k) rows.push_back(self.nth_row(held_out, k));
            return rows;
          },
          nb::arg("held_out"), "The rows on a side of the split.")
      .def(
          "find_rows",
          [](const Manifest& self, std::uint64_t begin, std::uint64_t end, bool held_out) {
            std::vector<std::uint64_t> rows;
            check_or_throw(self.find_rows(begin, end, held_out, SIZE_MAX, rows, {}));
            return rows;
          },
          nb::arg("begin"), nb::arg("end"), nb::kw_only(), nb::arg("held_out") = false,
          "Offsets of the rows that begin there, of one side of the split, where rows are not counted.")
      .def_prop_ro("size_bytes", &Manifest::size_bytes)
      .def_prop_ro("fingerprint", &Manifest::fingerprint)
      .def_prop_ro("was_scanned", &Manifest::was_scanned)
      .def_prop_ro("form", &Manifest::form)
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
            const bool is_counted = self.row_numbers() == RowNumbers::kCounted;
            if (row >= (is_counted ? self.n_rows() : self.size_bytes())) throw nb::index_error("row");
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

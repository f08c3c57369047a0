#include <fmt/format.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "array_of.h"
#include "bind.h"
#include "engine/checker.h"
#include "engine/inspector.h"
#include "interruptible.h"
#include "report_dict.h"
#include "row_dict.h"
#include "text/chat_template.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace stoker {
namespace {

nb::object bad_of(const Status& bad, const std::string& media) {
  if (bad.ok()) return nb::none();
  return nb::make_tuple(str_of(name_of(bad.reason())), text_or_bytes(bad.message()),
                        media.empty() ? nb::none() : text_or_bytes(media));
}

nb::tuple size_of(qwen_vl::SizePx size) { return nb::make_tuple(size.height, size.width); }

nb::tuple range_of(TokenRange range) { return nb::make_tuple(range.begin, range.end); }

/// What an image and a frame of a clip have in common.
nb::dict picture_dict(const PreparedPicture& picture) {
  nb::dict out;
  const MeasuredImage& m = picture.measured;
  out["reference"] = text_or_bytes(picture.reference);
  out["url"] = text_or_bytes(m.url);
  out["size_from"] = m.is_size_from_row ? "row" : "header";
  out["n_bytes"] = m.object_bytes;
  if (picture.info) {
    out["stored_size"] = nb::make_tuple(picture.info->height_px, picture.info->width_px);
    out["orientation"] = picture.info->orientation;
  } else {
    out["stored_size"] = nb::none();
    out["orientation"] = 1;
  }
  out["upright_size"] = size_of(m.upright);
  out["prepared_size"] = size_of(m.prepared);
  out["bad"] = bad_of(picture.bad, "");
  return out;
}

nb::dict image_dict(const PreparedPicture& image) {
  nb::dict out = picture_dict(image);
  const MeasuredImage& m = image.measured;
  out["target_size"] = nb::make_tuple(m.plan.height_px, m.plan.width_px);
  out["grid_thw"] = nb::make_tuple(m.is_planned() ? 1 : 0, m.plan.grid_h, m.plan.grid_w);
  out["tokens"] = range_of(image.tokens);
  out["patches"] = nb::make_tuple(image.patch_begin, image.patch_begin + m.plan.n_patches());
  return out;
}

nb::dict clip_dict(const PreparedClip& clip) {
  nb::dict out;
  const qwen_vl::ClipPlan& plan = clip.plan;
  nb::list frames;
  for (const PreparedPicture& frame : clip.frames) frames.append(picture_dict(frame));
  out["frames"] = frames;
  out["fps"] = clip.times.fps;
  out["total_frames"] = clip.times.total_frames;
  out["frame_numbers"] = clip.times.frames;
  out["seconds"] = clip.seconds;
  out["seconds_per_grid"] = plan.seconds_per_grid;
  out["first_size"] = plan.first_height_px > 0 ? nb::object(nb::make_tuple(plan.first_height_px, plan.first_width_px))
                                               : nb::object(nb::none());
  out["target_size"] = nb::make_tuple(plan.height_px, plan.width_px);
  out["grid_thw"] = nb::make_tuple(plan.grid_t, plan.grid_h, plan.grid_w);
  nb::list tokens;
  for (const TokenRange range : clip.tokens) tokens.append(range_of(range));
  out["tokens"] = tokens;
  out["patches"] = nb::make_tuple(clip.patch_begin, clip.patch_begin + plan.n_patches());
  return out;
}

nb::dict prepared_dict(Prepared prepared, const qwen_vl::ProcessorConfig& config) {
  nb::dict out;
  const std::size_t n = prepared.input_ids.size();
  const auto n_patches = static_cast<std::size_t>(prepared.n_patches);
  const auto n_video_patches = static_cast<std::size_t>(prepared.n_video_patches);
  const auto p = static_cast<std::size_t>(config.patch);
  const auto t = static_cast<std::size_t>(config.temporal_patch);
  out["id"] = prepared.id;
  out["bad"] = bad_of(prepared.bad, prepared.bad_media);
  out["input_ids"] = array_of(std::move(prepared.input_ids), {n});
  out["labels"] = array_of(std::move(prepared.labels), {n});
  out["loss_weights"] =
      prepared.loss_weights.empty() ? nb::object(nb::none()) : array_of(std::move(prepared.loss_weights), {n}).cast();
  out["position_ids"] = array_of(std::move(prepared.position_ids), {4, n});
  out["image_patches"] = prepared.image_patches.empty()
                             ? nb::object(nb::none())
                             : array_of(std::move(prepared.image_patches), {n_patches, 3, p, p}).cast();
  out["video_patches"] = prepared.video_patches.empty()
                             ? nb::object(nb::none())
                             : array_of(std::move(prepared.video_patches), {n_video_patches, 3, t, p, p}).cast();
  nb::list images, clips;
  for (const PreparedPicture& each : prepared.images) images.append(image_dict(each));
  for (const PreparedClip& each : prepared.clips) clips.append(clip_dict(each));
  out["images"] = images;
  out["clips"] = clips;
  nb::list turns;
  for (const PreparedTurn& turn : prepared.turns) {
    turns.append(nb::make_tuple(turn.role ? nb::object(str_of(text::name_of(*turn.role))) : nb::object(nb::none()),
                                turn.is_assistant, turn.tokens.begin, turn.tokens.end));
  }
  out["turns"] = turns;
  nb::list boxes;
  for (const PreparedBox& each : prepared.boxes) {
    nb::list points;
    for (const double x : each.box.points) points.append(x);
    boxes.append(nb::make_tuple(each.box.name.empty() ? nb::object(nb::int_(each.image)) : nb::object(nb::none()),
                                nb::tuple(points), each.box.is_share_of_sides, text_or_bytes(each.box.name),
                                text_or_bytes(each.text)));
  }
  out["boxes"] = boxes;
  out["cost"] = prepared.cost;
  return out;
}

nb::dict check_dict(const CheckReport& r) {
  nb::dict out;
  out["rows"] = r.n_rows;
  out["rows_in_all"] = r.n_rows_in_all;
  add_rejected(out, r.rejected);
  nb::dict shapes;
  for (const auto& [shape, n] : r.shapes) shapes[str_of(shape)] = n;
  out["shapes"] = shapes;
  nb::dict media;
  media["mentions"] = r.n_media;
  media["headers_read"] = r.n_headers;
  media["without_size"] = r.n_unsized;
  media["rejected_by_code"] = counts_dict(r.media_rejected);
  out["media"] = media;
  out["tokens"] = histogram_dict(r.tokens);
  out["text_tokens"] = histogram_dict(r.text_tokens);
  out["target_tokens"] = histogram_dict(r.target_tokens);
  out["media_pixels"] = histogram_dict(r.media_pixels);
  out["media_tokens"] = histogram_dict(r.media_tokens);
  out["patches"] = r.n_patches;
  out["elapsed_s"] = r.elapsed_s;
  return out;
}

/// Manifests and the way from a row to what the model sees.
struct CoreInspector {
  std::unique_ptr<Inspector> inspector;
  std::optional<Dataset> dataset;

  const Manifest& manifest(std::uint32_t source) const {
    if (!dataset || source >= dataset->n_sources()) throw nb::index_error("source");
    return dataset->manifest(source);
  }
  const RowOptions& rows(std::uint32_t source) const {
    if (!dataset || source >= dataset->n_sources()) throw nb::index_error("source");
    return dataset->rows(source);
  }
};

void bind_inspector(nb::module_& m) {
  nb::class_<CoreInspector>(m, "CoreInspector")
      .def_static(
          "create",
          [](const LoaderSettings& settings) {
            auto made = [&] {
              const nb::gil_scoped_release unlocked;
              return Inspector::create(settings);
            }();
            return CoreInspector{value_or_throw(std::move(made)), {}};
          },
          "settings"_a)
      .def(
          "prepare",
          [](const CoreInspector& self, const nb::bytes& line, const std::string& media_root, bool with_pixels,
             std::optional<std::uint32_t> source) {
            const std::string row(line.c_str(), line.size());
            const std::vector<DataSettings>& data = self.inspector->settings().output.data;
            const RowOptions rows = source ? self.rows(*source) : data.empty() ? RowOptions() : data.front().rows;
            auto prepared = run_interruptibly([&](std::stop_token stop) {
              return self.inspector->prepare(row, media_root, rows, with_pixels, std::move(stop));
            });
            return prepared_dict(value_or_throw(std::move(prepared)), self.inspector->model().config());
          },
          "line"_a, "media_root"_a, "with_pixels"_a = true, "source"_a = nb::none(),
          "`source`: the manifest that the row comes from, which says how it is read; otherwise as the first one says.")
      .def(
          "parse",
          [](const CoreInspector& self, const nb::bytes& line, std::uint32_t source) {
            const std::string row(line.c_str(), line.size());
            const RowOptions& rows = self.rows(source);
            RowNotes notes;
            auto sample =
                run_interruptibly([&](const std::stop_token&) { return self.inspector->parse(row, rows, notes); });
            return row_dict(value_or_throw(std::move(sample)), notes);
          },
          "line"_a, "source"_a, "A row as prepare() reads it, after the user's own code.")
      .def(
          "fetch",
          [](const CoreInspector& self, const std::string& url) {
            auto got =
                run_interruptibly([&](std::stop_token stop) { return self.inspector->fetch(url, std::move(stop)); });
            const FetchedObject object = value_or_throw(std::move(got));
            const auto bytes = object.bytes.bytes();
            return nb::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size());
          },
          "url"_a)
      .def("open_dataset",
           [](CoreInspector& self) {
             auto dataset =
                 run_interruptibly([&](std::stop_token stop) { return self.inspector->open_dataset(std::move(stop)); });
             self.dataset.emplace(value_or_throw(std::move(dataset)));
           })
      .def_prop_ro("n_sources",
                   [](const CoreInspector& self) { return self.dataset ? self.dataset->n_sources() : std::size_t{0}; })
      .def("name",
           [](const CoreInspector& self, std::uint32_t source) {
             self.manifest(source);  // that there is one
             return self.dataset->name(source);
           })
      .def("n_rows", [](const CoreInspector& self, std::uint32_t source) { return self.manifest(source).n_rows(); })
      .def(
          "read",
          [](const CoreInspector& self, std::uint32_t source, std::uint64_t row) {
            const Manifest& manifest = self.manifest(source);
            if (row >= manifest.n_rows()) throw nb::index_error("row");
            std::string buffer;
            const std::string_view text = value_or_throw(manifest.read(row, buffer));
            return nb::bytes(text.data(), text.size());
          },
          "source"_a, "row"_a)
      .def(
          "location",
          [](const CoreInspector& self, std::uint32_t source, std::uint64_t row) {
            const Manifest& manifest = self.manifest(source);
            if (row >= manifest.n_rows()) throw nb::index_error("row");
            const RowLocation at = manifest.row(row);
            return nb::make_tuple(self.dataset->name(source), at.line, at.offset, at.n_bytes,
                                  self.dataset->media_root(source));
          },
          "source"_a, "row"_a, "(manifest, line, byte offset, bytes, media root).")
      .def(
          "row_at_line",
          [](const CoreInspector& self, std::uint32_t source, std::uint64_t line) -> std::optional<std::uint64_t> {
            const Manifest& manifest = self.manifest(source);
            std::uint64_t begin = 0, end = manifest.n_rows();
            while (begin < end) {
              const std::uint64_t middle = begin + (end - begin) / 2;
              (manifest.row(middle).line < line ? begin : end) = manifest.row(middle).line < line ? middle + 1 : middle;
            }
            if (begin == manifest.n_rows() || manifest.row(begin).line != line) return std::nullopt;
            return begin;
          },
          "source"_a, "line"_a)
      .def(
          "row_with_id",
          [](const CoreInspector& self, std::uint32_t source, const std::string& id) {
            const Manifest& manifest = self.manifest(source);
            auto found = run_interruptibly(
                [&](std::stop_token stop) { return Inspector::row_with_id(manifest, id, std::move(stop)); });
            return value_or_throw(std::move(found));
          },
          "source"_a, "id"_a)
      .def_prop_ro("merge", [](const CoreInspector& self) { return self.inspector->model().config().merge; })
      .def_prop_ro("clip_normalisation",
                   [](const CoreInspector& self) {
                     const auto& c = self.inspector->model().clip_config();
                     return std::make_tuple(std::vector<double>(c.mean.begin(), c.mean.end()),
                                            std::vector<double>(c.std.begin(), c.std.end()), c.rescale);
                   })
      .def_prop_ro("normalisation", [](const CoreInspector& self) {
        const auto& c = self.inspector->model().config();
        return std::make_tuple(std::vector<double>(c.mean.begin(), c.mean.end()),
                               std::vector<double>(c.std.begin(), c.std.end()), c.rescale, c.patch, c.merge,
                               c.temporal_patch,
                               self.inspector->model().profile().image_normalise == NormaliseRule::kPil);
      });
}

void bind_checker(nb::module_& m) {
  nb::class_<Checker>(m, "CoreChecker")
      .def_static(
          "create",
          [](const LoaderSettings& settings, std::optional<std::uint64_t> n_media_rows, std::string ledger,
             int n_examples) {
            return value_or_throw(Checker::create(
                settings, {.n_media_rows = n_media_rows, .ledger = std::move(ledger), .n_examples = n_examples}));
          },
          "settings"_a, "n_media_rows"_a.none(), "ledger"_a, "n_examples"_a)
      .def("wait_within",
           [](Checker& self, int milliseconds) {
             auto done = [&] {
               const nb::gil_scoped_release unlocked;
               return self.wait_within(std::chrono::milliseconds(milliseconds));
             }();
             return value_or_throw(std::move(done));
           })
      .def("progress", &Checker::progress)
      .def("report", [](const Checker& self) { return check_dict(self.report()); })
      .def("stop", &Checker::stop, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace

void bind_inspect(nb::module_& m) {
  bind_inspector(m);
  bind_checker(m);
}

}  // namespace stoker

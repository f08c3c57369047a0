#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "bind.h"
#include "manifest/row.h"
#include "model/profile.h"
#include "model/qwen_vl/expand.h"
#include "model/qwen_vl/qwen_vl.h"
#include "model/qwen_vl/smart_resize.h"
#include "text_options.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace stoker {
namespace {

/// The four position rows of a sample whose ids are 0 for text and `pad` for an image.
std::vector<std::vector<std::int64_t>> positions_of(const std::vector<std::int32_t>& ids,
                                                    const std::vector<std::tuple<int, int>>& grids, int pad,
                                                    int merge) {
  qwen_vl::SampleText text{.ids = ids, .is_trained = std::vector<std::uint8_t>(ids.size(), 0)};
  std::vector<qwen_vl::ImagePlan> images;
  for (const auto& [h, w] : grids) images.push_back({.grid_h = h, .grid_w = w, .n_tokens = h * w / (merge * merge)});
  const auto n = static_cast<std::size_t>(qwen_vl::expanded_length(text, images));
  std::vector<std::int64_t> out_ids(n), labels(n), positions(4 * n);
  qwen_vl::write_expanded(text, images, pad, merge,
                          {out_ids.data(), labels.data(), positions.data(), static_cast<std::int64_t>(n)});
  std::vector<std::vector<std::int64_t>> rows;
  for (std::size_t r = 0; r < 4; ++r)
    rows.emplace_back(positions.begin() + static_cast<std::ptrdiff_t>(r * n),
                      positions.begin() + static_cast<std::ptrdiff_t>((r + 1) * n));
  return rows;
}

}  // namespace

void bind_model(nb::module_& m) {
  m.def(
      "resolve_profile",
      [](const std::string& reference, std::string exif, std::string alpha, std::string grey16,
         std::string content_tokens) {
        const Profile profile = value_or_throw(resolve_profile(
            reference, {std::move(exif), std::move(alpha), std::move(grey16), std::move(content_tokens)}));
        const ProfileOverrides words = words_of(profile);
        nb::dict out;
        out["name"] = std::string(profile.name);
        out["is_strict"] = profile.is_strict;
        out["exif"] = words.exif;
        out["alpha"] = words.alpha;
        out["grey16"] = words.grey16;
        out["content_tokens"] = words.content_tokens;
        out["is_pil_backend"] = profile.image_normalise == NormaliseRule::kPil;
        out["facts"] = profile.facts();
        return out;
      },
      "reference"_a, "exif"_a = "auto", "alpha"_a = "auto", "grey16"_a = "auto", "content_tokens"_a = "auto",
      "Facts of the profile that a run follows; InvalidArgumentError for a value that contradicts a strict one.");
  m.def(
      "profile_names",
      [] {
        std::vector<std::string> out;
        for (const Profile& p : profiles()) out.emplace_back(p.name);
        return out;
      },
      "All that `reference` takes, the default first.");
  m.def(
      "smart_resize",
      [](int height, int width, int factor, std::int64_t min_pixels, std::int64_t max_pixels) {
        const auto size = value_or_throw(qwen_vl::smart_resize({height, width}, factor, {min_pixels, max_pixels}));
        return std::make_tuple(size.height, size.width);
      },
      "height"_a, "width"_a, "factor"_a, "min_pixels"_a, "max_pixels"_a,
      "(height, width) that an upright image is resized to; BadSampleError IMG_ASPECT beyond 200 to 1.");
  m.def("image_positions", &positions_of, "ids"_a, "grids"_a, "pad"_a, "merge"_a,
        "Position rows text, t, h, w of a sample: `ids` before expansion, `grids` (h, w) in patches of each pad.");
  m.def(
      "encode_rows",
      [](const std::string& folder, const std::vector<nb::bytes>& rows, const std::string& reference,
         const std::string& train_on, const std::vector<std::string>& roles, const std::string& end_of_turn,
         const std::string& engine, std::optional<nb::callable> make_renderer) {
        const Profile* const profile = find_profile(reference);
        if (profile == nullptr) throw nb::key_error(reference.c_str());
        qwen_vl::TextOptions options{.engine = template_engine_named(engine),
                                     .labels = label_rule(train_on, roles, end_of_turn)};
        if (make_renderer) {
          options.make_renderer = python_renderers(std::move(*make_renderer), std::make_shared<StageClock>());
        }
        std::vector<std::string> lines;
        for (const nb::bytes& row : rows) lines.emplace_back(row.c_str(), row.size());
        std::vector<std::tuple<std::vector<std::int32_t>, std::vector<std::uint8_t>, std::string, std::string>> out;
        Status status;
        {
          nb::gil_scoped_release unlocked;
          auto model = qwen_vl::QwenVl::load(folder, *profile, options);
          status = model.ok() ? Status() : model.status();
          for (std::size_t i = 0; model.ok() && i < lines.size(); ++i) {
            auto sample = parse_row(lines[i]);
            auto text = sample.ok() ? (*model)->encode(*sample) : Result<qwen_vl::SampleText>(sample.status());
            if (text.ok()) {
              out.emplace_back(std::move(text->ids), std::move(text->is_trained), "", "");
            } else {
              out.emplace_back(std::vector<std::int32_t>(), std::vector<std::uint8_t>(),
                               name_of(text.status().reason()), text.status().message());
            }
          }
        }
        check_or_throw(status);
        return out;
      },
      "model"_a, "rows"_a, nb::kw_only(), "reference"_a = "hf-5.18-torchvision", "train_on"_a = "assistant",
      "roles"_a = std::vector<std::string>{"assistant"}, "end_of_turn"_a = "full", "engine"_a = "auto",
      "make_renderer"_a.none() = nb::none(),
      "(ids, trained, code, message) of each JSONL line before its placeholders are expanded; the code is empty for a "
      "row that can be used.");
}

}  // namespace stoker

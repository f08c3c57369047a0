#include <fmt/format.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "bind.h"
#include "manifest/row.h"
#include "model/families.h"
#include "model/profile.h"
#include "model/qwen_vl/clip.h"
#include "model/qwen_vl/expand.h"
#include "model/qwen_vl/qwen_vl.h"
#include "model/qwen_vl/smart_resize.h"
#include "text_options.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace stoker {
namespace {

using Positions = std::vector<std::vector<std::int64_t>>;
using Grids = std::vector<std::tuple<int, int, int>>;

const qwen_vl::Family& family_named(const std::string& name) {
  std::string all;
  for (const qwen_vl::Family* family : model_families()) {
    if (family->name == name) return *family;
    all += fmt::format("{}{}", all.empty() ? "" : ", ", family->name);
  }
  throw_status(Status(Reason::kSettings, fmt::format("family {} is not known; it takes {}", name, all)));
}

const Profile& profile_named(const std::string& name) {
  const Profile* const found = find_profile(name);
  if (found == nullptr) throw_status(resolve_profile(name, {}).status());
  return *found;
}

/// The four position rows of a sample whose ids are 0 for text, `image_pad` and `video_pad` for media.
Positions positions_of(const std::string& family_name, const std::string& reference,
                       const std::vector<std::int32_t>& ids, const Grids& image_grids, const Grids& video_grids,
                       const std::vector<double>& seconds_per_grid, double tokens_per_second, int image_pad,
                       int video_pad, int merge) {
  const qwen_vl::Family& family = family_named(family_name);
  qwen_vl::SampleText text{.ids = ids, .is_trained = std::vector<std::uint8_t>(ids.size(), 0)};
  std::vector<qwen_vl::ImagePlan> images;
  for (const auto& [t, h, w] : image_grids) {
    images.push_back({.grid_h = h, .grid_w = w, .n_tokens = t * h * w / (merge * merge)});
  }
  std::vector<qwen_vl::ClipPlan> clips;
  std::int32_t n_clip_pads = 0;
  for (const auto& [t, h, w] : video_grids) {
    const bool is_block_per_time = family.clip_tokens == qwen_vl::ClipTokens::kBlockPerTime;
    clips.push_back({.grid_t = t,
                     .grid_h = h,
                     .grid_w = w,
                     .n_pads = is_block_per_time ? t : 1,
                     .n_tokens = t * h * w / (merge * merge),
                     .seconds_per_grid = clips.size() < seconds_per_grid.size() ? seconds_per_grid[clips.size()] : 1});
    n_clip_pads += clips.back().n_pads;
  }
  text.n_images = static_cast<std::int32_t>(std::count(ids.begin(), ids.end(), image_pad));
  text.n_clip_pads = static_cast<std::int32_t>(std::count(ids.begin(), ids.end(), video_pad));
  if (text.n_images != static_cast<std::int32_t>(images.size()) || text.n_clip_pads != n_clip_pads) {
    throw_status(Status(Reason::kMediaCount, "as many pads as grids make"));
  }
  const auto n = static_cast<std::size_t>(qwen_vl::expanded_length(text, {images, clips}));
  std::vector<std::int64_t> out_ids(n), labels(n), positions(4 * n);
  qwen_vl::write_expanded(text, {images, clips},
                          {.image_pad = image_pad,
                           .video_pad = video_pad,
                           .merge = merge,
                           .clip_positions = profile_named(reference).clip_positions,
                           .has_time_in_positions = family.has_time_in_positions,
                           .tokens_per_second = tokens_per_second},
                          {out_ids.data(), labels.data(), positions.data(), static_cast<std::int64_t>(n)});
  Positions rows;
  for (std::size_t r = 0; r < 4; ++r)
    rows.emplace_back(positions.begin() + static_cast<std::ptrdiff_t>(r * n),
                      positions.begin() + static_cast<std::ptrdiff_t>((r + 1) * n));
  return rows;
}

void bind_sizes(nb::module_& m) {
  m.def(
      "smart_resize",
      [](int height, int width, int factor, double min_pixels, double max_pixels, bool is_qwen_vl_utils) {
        const auto size = value_or_throw(
            qwen_vl::smart_resize({height, width}, factor, min_pixels, max_pixels,
                                  is_qwen_vl_utils ? ImageSizeRule::kQwenVlUtils : ImageSizeRule::kTransformers));
        return std::make_tuple(size.height, size.width);
      },
      "height"_a, "width"_a, "factor"_a, "min_pixels"_a, "max_pixels"_a, "is_qwen_vl_utils"_a = false,
      "(height, width) that an upright image is resized to; BadSampleError IMG_ASPECT beyond 200 to 1.");
  m.def(
      "clip_size",
      [](const std::string& family_name, const std::string& reference, std::int64_t n_frames, int height, int width,
         std::int64_t min_pixels, std::int64_t max_pixels, bool is_capped) {
        const qwen_vl::Family& family = family_named(family_name);
        const bool is_per_clip = family.clip_budget == qwen_vl::ClipBudget::kPerClip;
        const qwen_vl::ClipSizing sizing{.factor = is_per_clip ? 32 : 28,
                                         .limits = {min_pixels, max_pixels},
                                         .max_video_tokens = family.clip_defaults.max_video_tokens,
                                         .is_capped = is_capped};
        const auto size = value_or_throw(
            qwen_vl::clip_size(family, profile_named(reference).clip_size, n_frames, {height, width}, sizing));
        return std::make_tuple(size.height, size.width);
      },
      "family"_a, "reference"_a, "n_frames"_a, "height"_a, "width"_a, "min_pixels"_a, "max_pixels"_a,
      "is_capped"_a = false,
      "(height, width) of a clip's frames; BadSampleError CLIP_FRAMES, IMG_ASPECT or IMG_SIZE where there is none.");
  m.def(
      "qwen_vl_utils_clip_size",
      [](std::int64_t n_frames, int height, int width, int factor) {
        const auto sizes = value_or_throw(qwen_vl::qwen_vl_utils_clip_size(n_frames, {height, width}, factor, {}));
        return std::make_tuple(sizes.first.height, sizes.first.width, sizes.second.height, sizes.second.width);
      },
      "n_frames"_a, "height"_a, "width"_a, "factor"_a,
      "Sizes of a listed clip's frames after the first and the second resize of qwen-vl-utils.");
}

void bind_clips(nb::module_& m) {
  m.def(
      "sample_frames",
      [](const std::string& family, bool is_qwen_vl_utils, std::int64_t n_source, double source_fps, double fps,
         std::int64_t n_frames, std::int64_t min_frames, std::int64_t max_frames) {
        return value_or_throw(qwen_vl::sample_frames(
            family_named(family), is_qwen_vl_utils ? FrameSampling::kQwenVlUtils : FrameSampling::kTransformers,
            {n_source, source_fps}, {fps, n_frames, min_frames, max_frames}));
      },
      "family"_a, "is_qwen_vl_utils"_a, "n_source"_a, "source_fps"_a, "fps"_a = 2.0, "n_frames"_a = 0,
      "min_frames"_a = 4, "max_frames"_a = 768,
      "Numbers of the frames that the reference takes; source_fps 0: unknown.");
  m.def(
      "clip_timestamps",
      [](const std::vector<std::int64_t>& frames, double fps, int temporal_patch) {
        std::vector<std::string> out;
        for (const double s : qwen_vl::seconds_of_patches({frames, fps, 0}, temporal_patch)) {
          out.push_back(qwen_vl::timestamp_text(s));
        }
        return out;
      },
      "frames"_a, "fps"_a, "temporal_patch"_a = 2, "What stands before each temporal patch of a Qwen3-VL clip.");
  m.def(
      "seconds_per_grid",
      [](const std::vector<std::int64_t>& frames, double fps, double total_frames, int temporal_patch) {
        return qwen_vl::seconds_per_grid({frames, fps, total_frames}, temporal_patch);
      },
      "frames"_a, "fps"_a, "total_frames"_a, "temporal_patch"_a = 2,
      "Seconds between temporal patches, for the positions of Qwen2.5-VL.");
}

void bind_profiles(nb::module_& m) {
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
}

}  // namespace

void bind_model(nb::module_& m) {
  bind_profiles(m);
  bind_sizes(m);
  bind_clips(m);
  m.def("media_positions", &positions_of, "family"_a, "reference"_a, "ids"_a, "image_grids"_a, "video_grids"_a,
        "seconds_per_grid"_a, "tokens_per_second"_a, "image_pad"_a, "video_pad"_a, "merge"_a,
        "Position rows text, t, h, w of a sample: `ids` before expansion, grids (t, h, w) in patches of each pad.");
  m.def(
      "encode_rows",
      [](const std::string& folder, const std::vector<nb::bytes>& rows, const std::string& reference,
         const std::string& train_on, const std::vector<std::string>& roles, const std::string& end_of_turn,
         const std::string& engine, std::optional<nb::callable> make_renderer) {
        const Profile* const profile = find_profile(reference);
        if (profile == nullptr) throw nb::key_error(reference.c_str());
        qwen_vl::TextOptions options{.engine = template_engine_named(engine),
                                     .labels = label_rule(train_on, roles, end_of_turn, "reject")};
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

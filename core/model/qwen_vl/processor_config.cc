#include "model/qwen_vl/processor_config.h"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <string_view>

#include "model/json_fields.h"
#include "model/qwen_vl/model_shape.h"

namespace stoker::qwen_vl {
namespace {

constexpr std::int64_t kMostPixels = std::int64_t{1} << 40;
constexpr double kReleasedTokensPerSecond = 2;  // of every released Qwen2.5-VL

/// What image and clip configs have in common.
Status read_common(JsonFields& fields, ProcessorConfig& geometry, PixelLimits& limits, std::array<double, 3>& mean,
                   std::array<double, 3>& std, double& rescale) {
  fields.integer("patch_size", 2, 64, geometry.patch);
  fields.integer("merge_size", 1, 8, geometry.merge);
  fields.integer("temporal_patch_size", 1, 8, geometry.temporal_patch);
  if (auto size = fields.child("size")) {
    for (const char* edge : {"shortest_edge", "longest_edge"}) {
      if (!size->has(edge) && !fields.has(std::string_view(edge) == "shortest_edge" ? "min_pixels" : "max_pixels")) {
        size->fail(edge, "is missing: a size gives both, as pixel counts");
      }
    }
    size->integer("shortest_edge", 1, kMostPixels, limits.min_pixels);
    size->integer("longest_edge", 1, kMostPixels, limits.max_pixels);
    STOKER_CHECKED(size->status());
  }
  fields.integer("min_pixels", 1, kMostPixels, limits.min_pixels);
  fields.integer("max_pixels", 1, kMostPixels, limits.max_pixels);
  fields.triple("image_mean", mean);
  fields.triple("image_std", std);
  fields.number("rescale_factor", rescale);
  for (const char* key : {"do_resize", "do_rescale", "do_normalize"}) fields.must_be_true(key);
  int resample = 3;
  fields.integer("resample", 0, 5, resample);
  if (resample != 3) fields.fail("resample", "must be 3 (bicubic)");
  if (limits.min_pixels > limits.max_pixels) fields.fail("size", "has its minimum above its maximum");
  for (const double s : std) {
    if (!(s > 0)) fields.fail("image_std", "must be above 0");
  }
  if (!(rescale > 0)) fields.fail("rescale_factor", "must be above 0");
  return fields.status();
}

/// One of the configs that a folder may have: an object inside processor_config.json, or a file of its own.
struct Found {
  std::optional<JsonFile> file;
  std::optional<JsonFields> fields;
};

Result<Found> find(const std::filesystem::path& folder, std::string_view nested,
                   std::initializer_list<const char*> own_files) {
  std::error_code ignored;
  Found found;
  if (std::filesystem::exists(folder / "processor_config.json", ignored)) {
    STOKER_TRY(found.file, JsonFile::open(folder / "processor_config.json"));
    JsonFields root = found.file->fields();
    found.fields = root.child(nested);
    STOKER_CHECKED(root.status());
    if (found.fields) return found;
  }
  for (const char* name : own_files) {
    if (!std::filesystem::exists(folder / name, ignored)) continue;
    STOKER_TRY(found.file, JsonFile::open(folder / name));
    found.fields = found.file->fields();
    return found;
  }
  return Status(
      Reason::kModelFolder,
      fmt::format("{} has no preprocessor_config.json, and no processor_config.json with \"{}\" in it: one of "
                  "them says how pictures are prepared; both are saved with the processor",
                  folder.string(), nested));
}

Status check_geometry(JsonFields& fields, std::string_view key, int expected, std::string_view other) {
  int found = expected;
  fields.integer(key, 1, 1024, found);
  if (found != expected) fields.fail(key, fmt::format("is {}, but {} says {}", found, other, expected));
  return fields.status();
}

Status read_model(const std::filesystem::path& folder, const Family& family, FolderConfig& config) {
  std::error_code ignored;
  config.tokens_per_second = family.has_time_in_positions ? kReleasedTokensPerSecond : 1;
  if (!std::filesystem::exists(folder / "config.json", ignored)) return {};
  STOKER_TRY(const JsonFile file, JsonFile::open(folder / "config.json"));
  JsonFields root = file.fields();
  if (const std::optional<ModelShape> shape = read_shape(root)) config.cost = cost_of(*shape);
  auto vision = root.child("vision_config");
  STOKER_CHECKED(root.status());
  config.tokens_per_second = family.tokens_per_second;
  if (!vision) return {};
  STOKER_CHECKED(check_geometry(*vision, "patch_size", config.image.patch, "the image processor's config"));
  STOKER_CHECKED(check_geometry(*vision, "spatial_merge_size", config.image.merge, "the image processor's config"));
  STOKER_CHECKED(
      check_geometry(*vision, "temporal_patch_size", config.image.temporal_patch, "the image processor's config"));
  if (family.has_time_in_positions) vision->number("tokens_per_second", config.tokens_per_second);
  return vision->status();
}

}  // namespace

Result<FolderConfig> load_folder_config(const std::filesystem::path& folder, const Family& family) {
  FolderConfig config;
  STOKER_TRY(Found image, find(folder, "image_processor", {"preprocessor_config.json"}));
  STOKER_CHECKED(read_common(*image.fields, config.image, config.image.limits, config.image.mean, config.image.std,
                             config.image.rescale));
  config.clip = family.clip_defaults;
  STOKER_TRY(Found clip,
             find(folder, "video_processor", {"video_preprocessor_config.json", "preprocessor_config.json"}));
  ProcessorConfig geometry = config.image;
  STOKER_CHECKED(
      read_common(*clip.fields, geometry, config.clip.limits, config.clip.mean, config.clip.std, config.clip.rescale));
  if (geometry.patch != config.image.patch || geometry.merge != config.image.merge ||
      geometry.temporal_patch != config.image.temporal_patch) {
    clip.fields->fail("patch_size", "and merge_size and temporal_patch_size must be the image processor's");
  }
  clip.fields->number("fps", config.clip.fps);
  clip.fields->integer("min_frames", 1, 1 << 20, config.clip.min_frames);
  clip.fields->integer("max_frames", 1, 1 << 20, config.clip.max_frames);
  clip.fields->integer("max_video_tokens", 1, kMostPixels, config.clip.max_video_tokens);
  STOKER_CHECKED(clip.fields->status());
  STOKER_CHECKED(read_model(folder, family, config));
  return config;
}

}  // namespace stoker::qwen_vl

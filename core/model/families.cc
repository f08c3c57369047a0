#include "model/families.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "model/json_fields.h"
#include "model/qwen2_5_vl/qwen2_5_vl.h"
#include "model/qwen2_vl/qwen2_vl.h"
#include "model/qwen3_vl/qwen3_vl.h"

namespace stoker {
namespace {

std::string known_model_types() {
  std::vector<std::string_view> all;
  for (const qwen_vl::Family* family : model_families()) {
    all.insert(all.end(), family->model_types.begin(), family->model_types.end());
  }
  return fmt::format("{}", fmt::join(all, ", "));
}

const qwen_vl::Family* by_model_type(std::string_view model_type) {
  for (const qwen_vl::Family* family : model_families()) {
    const auto& types = family->model_types;
    if (std::find(types.begin(), types.end(), model_type) != types.end()) return family;
  }
  return nullptr;
}

const qwen_vl::Family* by_processor_class(std::string_view processor_class) {
  for (const qwen_vl::Family* family : model_families()) {
    if (family->processor_class == processor_class) return family;
  }
  return nullptr;
}

}  // namespace

std::span<const qwen_vl::Family* const> model_families() {
  static const std::array<const qwen_vl::Family*, 3> families = {&qwen2_vl::family(), &qwen2_5_vl::family(),
                                                                 &qwen3_vl::family()};
  return families;
}

Result<const qwen_vl::Family*> family_of(const std::filesystem::path& folder) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored)) {
    return Status(Reason::kModelFolder,
                  fmt::format("{} is no folder; `model` names a checkpoint folder on this machine", folder.string()));
  }
  if (std::filesystem::exists(folder / "config.json", ignored)) {
    STOKER_TRY(JsonFile file, JsonFile::open(folder / "config.json"));
    std::string model_type;
    JsonFields fields = file.fields();
    fields.text("model_type", model_type);
    STOKER_CHECKED(fields.status());
    if (const qwen_vl::Family* family = by_model_type(model_type)) return family;
    return Status(
        Reason::kModelFolder,
        fmt::format("{}: model_type {} is no model family that this version knows; it knows {}", file.name(),
                    model_type.empty() ? "is missing and" : fmt::format("\"{}\"", model_type), known_model_types()));
  }
  std::string seen;
  for (const char* name : {"processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json"}) {
    if (!std::filesystem::exists(folder / name, ignored)) continue;
    STOKER_TRY(JsonFile file, JsonFile::open(folder / name));
    std::string processor_class;
    JsonFields fields = file.fields();
    fields.text("processor_class", processor_class);
    STOKER_CHECKED(fields.status());
    if (const qwen_vl::Family* family = by_processor_class(processor_class)) return family;
    if (!processor_class.empty()) seen = fmt::format("; {} says processor_class \"{}\"", name, processor_class);
  }
  return Status(Reason::kModelFolder,
                fmt::format("{} has no config.json with a model_type ({}), and none of its processor configs names a "
                            "processor_class that is known{}",
                            folder.string(), known_model_types(), seen));
}

}  // namespace stoker

#include "model/qwen_vl/processor_config.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <string_view>

namespace stoker::qwen_vl {
namespace {

using simdjson::dom::element;
using simdjson::dom::object;

/// Reads the fields of one config file; the first that does not fit becomes the status.
class Fields {
 public:
  Fields(object root, std::string file) : root_(root), file_(std::move(file)) {}

  bool has(std::string_view key) const {
    element e;
    return root_[key].get(e) == simdjson::SUCCESS && !e.is_null();
  }
  void integer(std::string_view key, std::int64_t least, std::int64_t most, auto& out) {
    if (!has(key)) return;  // the class defaults of the reference are ours
    std::int64_t value = 0;
    if (root_[key].get(value) != simdjson::SUCCESS || value < least || value > most) {
      fail(key, fmt::format("is no integer from {} to {}", least, most));
      return;
    }
    out = static_cast<std::remove_reference_t<decltype(out)>>(value);
  }
  void triple(std::string_view key, std::array<double, 3>& out) {
    if (!has(key)) return;
    simdjson::dom::array values;
    if (root_[key].get(values) != simdjson::SUCCESS || values.size() != 3)
      return fail(key, "is no list of three numbers");
    for (std::size_t i = 0; i < 3; ++i) {
      if (values.at(i).get(out[i]) != simdjson::SUCCESS) return fail(key, "is no list of three numbers");
    }
  }
  void number(std::string_view key, double& out) {
    if (has(key) && root_[key].get(out) != simdjson::SUCCESS) fail(key, "is no number");
  }
  void must_be_true(std::string_view key) {
    bool value = true;
    if (has(key) && (root_[key].get(value) != simdjson::SUCCESS || !value))
      fail(key, "must be true: this engine always does it");
  }
  void fail(std::string_view key, std::string_view why) {
    if (status_.ok()) status_ = Status(Reason::kModelFolder, fmt::format("{}: \"{}\" {}", file_, key, why));
  }
  Status status() const { return status_; }

 private:
  object root_;
  std::string file_;
  Status status_;
};

}  // namespace

Result<ProcessorConfig> load_processor_config(const std::filesystem::path& folder) {
  const std::string file = (folder / "preprocessor_config.json").string();
  simdjson::dom::parser parser;
  object root;
  if (const auto error = parser.load(file).get(root); error != simdjson::SUCCESS) {
    return Status(Reason::kModelFolder, fmt::format("{}: {}", file, simdjson::error_message(error)));
  }
  ProcessorConfig config;
  constexpr std::int64_t kMostPixels = std::int64_t{1} << 31;
  Fields fields(root, file);
  fields.integer("patch_size", 2, 64, config.patch);
  fields.integer("merge_size", 1, 8, config.merge);
  fields.integer("temporal_patch_size", 1, 8, config.temporal_patch);
  if (fields.has("size")) {
    object size;
    if (root["size"].get(size) != simdjson::SUCCESS) {
      fields.fail("size", "is no object");
    } else {
      Fields edges(size, file + ": size");
      edges.integer("shortest_edge", 1, kMostPixels, config.limits.min_pixels);
      edges.integer("longest_edge", 1, kMostPixels, config.limits.max_pixels);
      STOKER_CHECKED(edges.status());
    }
  }
  fields.integer("min_pixels", 1, kMostPixels, config.limits.min_pixels);
  fields.integer("max_pixels", 1, kMostPixels, config.limits.max_pixels);
  fields.triple("image_mean", config.mean);
  fields.triple("image_std", config.std);
  fields.number("rescale_factor", config.rescale);
  for (const char* key : {"do_resize", "do_rescale", "do_normalize"}) fields.must_be_true(key);
  std::int64_t resample = 3;
  fields.integer("resample", 0, 5, resample);
  if (resample != 3) fields.fail("resample", "must be 3 (bicubic)");
  if (config.limits.min_pixels > config.limits.max_pixels) fields.fail("size", "has its minimum above its maximum");
  STOKER_CHECKED(fields.status());
  return config;
}

}  // namespace stoker::qwen_vl

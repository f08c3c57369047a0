#include "model/json_fields.h"

#include <fmt/format.h>

namespace stoker {

using simdjson::dom::element;

bool JsonFields::has(std::string_view key) const {
  element e;
  return root_[key].get(e) == simdjson::SUCCESS && !e.is_null();
}

void JsonFields::integer(std::string_view key, std::int64_t least, std::int64_t most, std::int64_t& out) {
  if (!has(key)) return;
  std::int64_t value = 0;
  if (root_[key].get(value) != simdjson::SUCCESS || value < least || value > most) {
    return fail(key, fmt::format("is no integer from {} to {}", least, most));
  }
  out = value;
}

void JsonFields::integer(std::string_view key, std::int64_t least, std::int64_t most, int& out) {
  std::int64_t value = out;
  integer(key, least, most, value);
  out = static_cast<int>(value);
}

void JsonFields::number(std::string_view key, double& out) {
  if (has(key) && root_[key].get(out) != simdjson::SUCCESS) fail(key, "is no number");
}

void JsonFields::triple(std::string_view key, std::array<double, 3>& out) {
  if (!has(key)) return;
  simdjson::dom::array values;
  if (root_[key].get(values) != simdjson::SUCCESS || values.size() != 3)
    return fail(key, "is no list of three numbers");
  for (std::size_t i = 0; i < 3; ++i) {
    if (values.at(i).get(out[i]) != simdjson::SUCCESS) return fail(key, "is no list of three numbers");
  }
}

void JsonFields::integers(std::string_view key, std::vector<std::int64_t>& out) {
  if (!has(key)) return;
  simdjson::dom::array values;
  if (root_[key].get(values) != simdjson::SUCCESS) return fail(key, "is no list of integers");
  out.clear();
  for (const element value : values) {
    std::int64_t number = 0;
    if (value.get(number) != simdjson::SUCCESS) return fail(key, "is no list of integers");
    out.push_back(number);
  }
}

void JsonFields::text(std::string_view key, std::string& out) {
  if (!has(key)) return;
  std::string_view value;
  if (root_[key].get(value) != simdjson::SUCCESS) return fail(key, "is no string");
  out = value;
}

void JsonFields::must_be_true(std::string_view key) {
  bool value = true;
  if (has(key) && (root_[key].get(value) != simdjson::SUCCESS || !value)) {
    fail(key, "must be true: this engine always does it");
  }
}

std::optional<JsonFields> JsonFields::child(std::string_view key) {
  if (!has(key)) return std::nullopt;
  simdjson::dom::object object;
  if (root_[key].get(object) != simdjson::SUCCESS) {
    fail(key, "is no object");
    return std::nullopt;
  }
  return JsonFields(object, fmt::format("{}: {}", where_, key));
}

void JsonFields::fail(std::string_view key, std::string_view why) {
  if (status_.ok()) status_ = Status(Reason::kModelFolder, fmt::format("{}: \"{}\" {}", where_, key, why));
}

Result<JsonFile> JsonFile::open(const std::filesystem::path& path) {
  JsonFile file;
  file.name_ = path.string();
  file.parser_ = std::make_unique<simdjson::dom::parser>();
  if (const auto error = file.parser_->load(file.name_).get(file.root_); error != simdjson::SUCCESS) {
    return Status(Reason::kModelFolder, fmt::format("{}: {}", file.name_, simdjson::error_message(error)));
  }
  return file;
}

}  // namespace stoker

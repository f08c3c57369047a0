#pragma once

#include <simdjson.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace stoker {

/// Reads the fields of one JSON object of a checkpoint folder. A field that is absent or null leaves its target as it
/// is; the first that does not fit becomes the status, MODEL_FOLDER with file and field.
class JsonFields {
 public:
  JsonFields(simdjson::dom::object root, std::string where) : root_(root), where_(std::move(where)) {}

  bool has(std::string_view key) const;
  void integer(std::string_view key, std::int64_t least, std::int64_t most, std::int64_t& out);
  void integer(std::string_view key, std::int64_t least, std::int64_t most, int& out);
  void number(std::string_view key, double& out);
  void triple(std::string_view key, std::array<double, 3>& out);
  void integers(std::string_view key, std::vector<std::int64_t>& out);
  void text(std::string_view key, std::string& out);
  void must_be_true(std::string_view key);
  /// The object under `key`; nothing if it is absent or no object.
  std::optional<JsonFields> child(std::string_view key);
  void fail(std::string_view key, std::string_view why);

  const std::string& where() const { return where_; }
  Status status() const { return status_; }

 private:
  simdjson::dom::object root_;
  std::string where_;
  Status status_;
};

/// A parsed file; its fields live as long as it does.
class JsonFile {
 public:
  /// @return MODEL_FOLDER: it cannot be read or holds no JSON object.
  static Result<JsonFile> open(const std::filesystem::path& path);

  JsonFields fields() const { return JsonFields(root_, name_); }
  const std::string& name() const { return name_; }

 private:
  JsonFile() = default;
  std::unique_ptr<simdjson::dom::parser> parser_;
  simdjson::dom::object root_;
  std::string name_;
};

}  // namespace stoker

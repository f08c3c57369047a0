#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace stoker {

struct JsonOptions {
  bool nonfinite_is_null = false;  ///< take NaN, Infinity and -Infinity for null instead of refusing the row
};

enum class JsonType : std::uint8_t { kNull, kTrue, kFalse, kInt, kFloat, kString, kArray, kObject };

class JsonDocument;

/// A value inside a JsonDocument, which must outlive it, as must the text that was parsed.
class JsonView {
 public:
  JsonView() = default;

  /// False for a view of nothing, such as a key that an object lacks.
  explicit operator bool() const { return document_ != nullptr; }
  JsonType type() const;
  bool is_null() const { return type() == JsonType::kNull; }
  bool is_string() const { return type() == JsonType::kString; }
  bool is_array() const { return type() == JsonType::kArray; }
  bool is_object() const { return type() == JsonType::kObject; }
  /// "a string", "an object", ...: for messages.
  std::string_view type_name() const;

  /// The text of a number or literal; of a string, what stands between its quotes, escapes unresolved.
  std::string_view raw() const;
  /// A string with its escapes resolved: valid UTF-8. Half a surrogate pair becomes U+FFFD and is counted in
  /// `n_replaced`.
  std::string string(std::uint32_t* n_replaced = nullptr) const;
  /// string() == `text`, without making one where nothing is escaped.
  bool string_is(std::string_view text) const;

  /// Walks an array or object: `for (JsonView v = a.first(); v; v = v.next())`. In an object key and value take turns.
  JsonView first() const;
  JsonView next() const;
  /// Elements of an array, pairs of an object.
  std::size_t size() const;
  /// Where the value starts, as "column 12, byte 11 of the row".
  std::string where() const;

 private:
  friend class JsonDocument;
  JsonView(const JsonDocument* document, std::uint32_t node, std::uint32_t end)
      : document_(document), node_(node), end_(end) {}

  const JsonDocument* document_ = nullptr;
  std::uint32_t node_ = 0;
  std::uint32_t end_ = 0;  // of the enclosing container
};

/// One JSON text (RFC 8259), checked to its last byte, as a flat array of nodes that a later parse() uses again.
///
/// Written by hand because a training row must be judged as a whole and the same everywhere: simdjson 3.0 has no answer
/// for half a surrogate pair, for integers beyond 64 bits or for floats beyond double, which Python writes and reads,
/// and does not say where a row is wrong. Threads: one.
class JsonDocument {
 public:
  /// @param text  Borrowed until the last view is gone. Up to 4 GiB; nesting up to 200 levels.
  /// @return JSON_UTF8, JSON_SYNTAX or JSON_NONFINITE; the message says where.
  Status parse(std::string_view text, const JsonOptions& options = {});

  /// The whole; valid after a parse() that was ok.
  JsonView root() const { return {this, 0, 1}; }

 private:
  friend class JsonView;
  friend class JsonParser;

  struct Node {
    const char* begin;
    std::uint32_t n_bytes;
    std::uint32_t end;  // the node after this one and all inside it
    JsonType type;
    bool is_escaped;  // strings only
  };

  std::string_view text_;
  std::vector<Node> nodes_;
};

/// "column 12, byte 11 of the row": columns count characters from 1, bytes from 0.
std::string describe_offset(std::string_view text, std::size_t offset);

}  // namespace stoker

#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace stoker {

enum class MediaKind : std::uint8_t { kImage, kVideo };

/// A media reference as the row has it. Sizes are upright pixels, 0 where the row does not say.
struct MediaRef {
  MediaKind kind = MediaKind::kImage;
  std::string
      reference;  ///< as written: a relative or absolute path, file:// or s3:// URL; never decoded or normalised here
  int height_px = 0;
  int width_px = 0;
};

enum class Role : std::uint8_t { kSystem, kUser, kAssistant, kTool };

/// One piece of a turn's content, in the row's order.
struct Part {
  enum class Kind : std::uint8_t { kText, kImage, kVideo };
  Kind kind = Kind::kText;
  std::string text;         ///< kText only; valid UTF-8
  std::uint32_t media = 0;  ///< kImage, kVideo: index into Sample::media
};

struct ToolCall {
  std::string name;
  std::string arguments;  ///< text to insert: the row's string as it is, or its JSON value as Python's
                          ///< json.dumps(ensure_ascii=False) writes it
};

struct Turn {
  Role role = Role::kUser;
  bool has_content = false;  ///< Jinja's truth of `content`: a non-empty string or a non-empty list
  std::vector<Part> parts;
  std::vector<ToolCall> tool_calls;
};

/// One JSONL line: a conversation with its media. Made by manifest/, read by text/ and model/.
struct Sample {
  std::vector<Turn> turns;
  std::vector<MediaRef> media;     ///< in reading order of their placeholders
  std::vector<std::string> tools;  ///< each as Python's json.dumps(ensure_ascii=False) writes it
};

}  // namespace stoker

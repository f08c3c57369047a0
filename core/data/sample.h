#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace stoker {

enum class MediaKind : std::uint8_t { kImage, kVideo };

/// A media reference as the row has it. Sizes are upright pixels, 0 where the row does not say.
struct MediaRef {
  MediaKind kind = MediaKind::kImage;
  /// As written: a relative or absolute path, file://, s3://, http(s):// or data: URL; never decoded or normalised
  /// here. Empty for a clip that is given as frames.
  std::string reference;
  int height_px = 0;
  int width_px = 0;

  // What the row asks for itself, beside the processor's own limits; 0: nothing.
  std::int64_t min_pixels = 0;
  std::int64_t max_pixels = 0;
  int resized_height_px = 0;
  int resized_width_px = 0;

  // kVideo only
  std::vector<std::string> frames = {};  ///< references of a clip that is given as pictures
  double frames_per_s = 0;         ///< rate at which `frames` were taken from their source; 0: the row does not say
  double source_frames_per_s = 0;  ///< rate of the source itself (`raw_fps`); 0: the row does not say
  std::int64_t total_pixels = 0;   ///< the row's own budget for the whole clip; 0: none
};

/// `kDeveloper` is a role that some templates drop and others print.
enum class Role : std::uint8_t { kSystem, kUser, kAssistant, kTool, kDeveloper };

/// One piece of a turn's content, in the row's order.
struct Part {
  enum class Kind : std::uint8_t { kText, kImage, kVideo, kBox };
  Kind kind = Kind::kText;
  std::string text;         ///< kText only; valid UTF-8
  std::uint32_t media = 0;  ///< kImage, kVideo: index into Sample::media. kBox: index into Sample::boxes
};

/// A place in a picture that the text names. Its coordinates become text once the picture's target size is known.
struct Box {
  std::uint32_t media = 0;          ///< the picture it lies in
  std::vector<double> points = {};  ///< x, y, x, y ... in pixels of the upright picture, or shares of its sides
  bool is_share_of_sides = false;
  std::string name = {};  ///< not empty: no place but the name of an object, which a family may write in its own marks
};

struct ToolCall {
  std::string name;
  std::string arguments;  ///< text to insert: the row's string as it is, or its JSON value as Python's
                          ///< json.dumps(ensure_ascii=False) writes it
};

struct Turn {
  Role role = Role::kUser;
  bool has_content = false;  ///< Jinja's truth of `content`: a non-empty string or a non-empty list
  std::vector<Part> parts = {};
  std::vector<ToolCall> tool_calls = {};
  /// The row's own word on this turn's loss (`loss`, `loss_scale`, `weight`): 0 none, 1 whole; absent: the settings
  /// decide.
  std::optional<float> loss_scale = std::nullopt;
};

/// One JSONL line: a conversation with its media. Made by manifest/, read by text/ and model/.
struct Sample {
  std::vector<Turn> turns = {};
  std::vector<MediaRef> media = {};  ///< in reading order of their placeholders
  std::vector<Box> boxes = {};
  std::vector<std::string> tools = {};  ///< each as Python's json.dumps(ensure_ascii=False) writes it
};

}  // namespace stoker

#include <fmt/format.h>

#include <utility>

#include "text/templates/native_template.h"

namespace stoker::text {

void ChunkWriter::begin(Role role, std::string_view name, std::size_t turn) {
  RenderedTurn& chunk = out_.chunks.emplace_back();
  chunk.role = role;
  chunk.turn = static_cast<std::uint32_t>(turn);
  chunk.n_turns = chunk.turn == RenderedTurn::kNoTurn ? 0 : 1;
  chunk.text = "<|im_start|>";
  chunk.text += name;
  chunk.header_bytes = chunk.text.size();
}

void ChunkWriter::end() {
  RenderedTurn& chunk = out_.chunks.back();
  chunk.text += "<|im_end|>";
  chunk.end_bytes = chunk.text.size();
  chunk.text += '\n';
}

void ChunkWriter::write_from_row(std::string_view text) {
  if (text.empty()) return;
  RenderedTurn& chunk = out_.chunks.back();
  const std::size_t begin = chunk.text.size();
  if (!chunk.content.empty() && chunk.content.back().end == begin) {
    chunk.content.back().end += text.size();
  } else {
    chunk.content.push_back({begin, begin + text.size()});
  }
  chunk.text.append(text);
}

void ChunkWriter::write_texts(const Turn& turn) {
  for (const Part& part : turn.parts) {
    if (part.kind == Part::Kind::kText || part.kind == Part::Kind::kBox) write_from_row(part.text);
  }
}

void ChunkWriter::write_parts(const Turn& turn) {
  for (const Part& part : turn.parts) {
    if (part.kind == Part::Kind::kText || part.kind == Part::Kind::kBox) {
      write_from_row(part.text);
      continue;
    }
    const bool is_image = part.kind == Part::Kind::kImage;
    const int number = is_image ? ++n_images_ : ++n_videos_;
    if (options_.add_vision_id) write(fmt::format("{} {}: ", is_image ? "Picture" : "Video", number));
    write(is_image ? "<|vision_start|><|image_pad|><|vision_end|>" : "<|vision_start|><|video_pad|><|vision_end|>");
    out_.chunks.back().media.push_back(part.media);
  }
}

void ChunkWriter::leave_out(Reason reason, std::string message) {
  if (out_.left_out.ok()) out_.left_out = Status(reason, std::move(message));
}

}  // namespace stoker::text

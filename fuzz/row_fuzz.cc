// One JSONL line. Whatever it holds, it is a sample that keeps its promises, or a bad one; never a crash, never our own
// bug.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "manifest/json_text.h"
#include "manifest/row.h"
#include "model/qwen_vl/box_text.h"
#include "text/utf8.h"

namespace {

void require(bool claim) {
  if (!claim) std::abort();
}

// A few ways to read rows; the size picks one, so that changed seeds meet them all.
const stoker::RowOptions& options_of(std::size_t size) {
  static const std::vector<stoker::RowOptions> all = [] {
    std::vector<stoker::RowOptions> options(5);
    options[1].json.nonfinite_is_null = true;
    options[2].columns = {{"messages", "conversations"}, {"role", "from"}, {"content", "value"}, {"images", "image"}};
    options[2].roles = {{"human", stoker::RowRole::kDeveloper}, {"x", stoker::RowRole::kToolCall}};
    options[3].shape = stoker::RowShape::kQueryResponse;
    options[3].columns = {{"query", "instruction"}, {"response", "output"}, {"images_base64", "image"}};
    options[4].shape = stoker::RowShape::kPromptCompletion;
    options[4].columns = {{"prompt", "messages"}, {"completion", "conversations"}};
    for (const auto& one : options) require(stoker::check_row_options(one).ok());
    return options;
  }();
  return all[size % 8 < all.size() ? size % 8 : 0];
}

// Boxes become text, or say that they are no places.
void write_boxes(stoker::Sample sample, std::size_t size) {
  using namespace stoker::qwen_vl;
  const BoxPicture known{.upright = {480, 640}, .target = {448, 644}};
  const std::vector<BoxPicture> pictures(sample.media.size(), size % 3 == 0 ? BoxPicture{} : known);
  const auto units = size % 2 == 0 ? BoxUnits::kPerMille : BoxUnits::kPixelsOfView;
  const stoker::Status status =
      stoker::qwen_vl::write_boxes(units, size % 5 == 0 ? BoxForm::kMarks : BoxForm::kList, pictures, sample);
  if (!status.ok()) return require(status.reason() == stoker::Reason::kBoxPlace);
  require(sample.boxes.empty());
  for (const stoker::Turn& turn : sample.turns) {
    for (const stoker::Part& part : turn.parts) {
      require(part.kind != stoker::Part::Kind::kBox);
      require(stoker::text::is_valid_utf8(part.text));
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view line(reinterpret_cast<const char*>(data), size);
  // What is written anew reads back as itself.
  if (const auto text = stoker::json_text(line); text.ok()) {
    const auto again = stoker::json_text(*text);
    require(again.ok() && *again == *text);
  }
  const auto sample = stoker::parse_row(line, options_of(size));
  if (!sample.ok()) {
    require(sample.status().code() == stoker::Code::kBadSample);
    require(!sample.status().message().empty());
    return 0;
  }
  std::size_t n_media = 0;
  std::size_t n_boxes = 0;
  for (const stoker::Turn& turn : sample->turns) {
    for (const stoker::Part& part : turn.parts) {
      if (part.kind == stoker::Part::Kind::kText) {
        require(stoker::text::is_valid_utf8(part.text));
      } else if (part.kind == stoker::Part::Kind::kBox) {
        require(part.media == n_boxes++);
      } else {
        require(part.media == n_media++);  // in reading order, each once
        const bool is_clip = sample->media.at(part.media).kind == stoker::MediaKind::kVideo;
        require(is_clip == (part.kind == stoker::Part::Kind::kVideo));
        require(is_clip == !sample->media.at(part.media).frames.empty());
      }
    }
  }
  require(n_media == sample->media.size());
  require(n_boxes == sample->boxes.size());
  for (const stoker::Box& box : sample->boxes) {
    require(!box.name.empty() || (!box.points.empty() && box.points.size() % 2 == 0));
    require(!box.name.empty() || sample->media.at(box.media).kind == stoker::MediaKind::kImage);
  }
  for (const stoker::Turn& turn : sample->turns) require(!turn.loss_scale || std::isfinite(*turn.loss_scale));
  write_boxes(*sample, size);
  return 0;
}

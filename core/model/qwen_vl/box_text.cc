#include "model/qwen_vl/box_text.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace stoker::qwen_vl {
namespace {

constexpr double kPerMille = 1000;

/// Turns the places of one sample into text, and counts them for messages.
class Places {
 public:
  Places(BoxUnits units, BoxForm form) : units_(units), form_(form) {}

  Result<std::string> text_of(const Box& box, const BoxPicture& picture) {
    ++number_;
    STOKER_CHECKED(check_area(box));
    std::vector<std::int64_t> numbers;
    const bool is_known = picture.target != SizePx{};
    for (std::size_t i = 0; i < box.points.size(); ++i) {
      STOKER_TRY(const std::int64_t number, is_known ? scaled(box, i, picture) : std::int64_t{0});
      numbers.push_back(number);
    }
    if (form_ == BoxForm::kList) return fmt::format("[{}]", fmt::join(numbers, ", "));
    std::string out = "<|box_start|>";
    for (std::size_t i = 0; i < numbers.size(); i += 2) {
      out += fmt::format("{}({},{})", i == 0 ? "" : ",", numbers[i], numbers[i + 1]);
    }
    return out + "<|box_end|>";
  }

 private:
  Result<std::int64_t> scaled(const Box& box, std::size_t i, const BoxPicture& picture) const {
    const bool is_x = i % 2 == 0;
    const double side = box.is_share_of_sides ? 1 : is_x ? picture.upright.width : picture.upright.height;
    const double range = units_ == BoxUnits::kPerMille ? kPerMille
                         : is_x                        ? picture.target.width
                                                       : picture.target.height;
    const double number = std::nearbyint(box.points[i] / side * range);
    if (number >= 0 && number <= range) return static_cast<std::int64_t>(number);
    return Status(
        Reason::kBoxPlace,
        box.is_share_of_sides
            ? fmt::format("{} lies outside its picture: with bbox_type norm1 numbers go from 0 to 1", shown(box))
            : fmt::format("{} lies outside its picture, which is {}x{} (height x width, upright)", shown(box),
                          picture.upright.height, picture.upright.width));
  }
  Status check_area(const Box& box) const {
    if (box.points.size() != 4 || (box.points[0] < box.points[2] && box.points[1] < box.points[3])) return {};
    return {Reason::kBoxPlace,
            fmt::format("{} has no area: a box is x1, y1, x2, y2 with x1 < x2 and y1 < y2; two numbers are a point",
                        shown(box))};
  }
  std::string shown(const Box& box) const {
    return fmt::format("box {} of the row, [{}],", number_, fmt::join(box.points, ", "));
  }

  const BoxUnits units_;
  const BoxForm form_;
  int number_ = 0;
};

std::string text_of_name(const std::string& name, BoxForm form) {
  return form == BoxForm::kMarks ? "<|object_ref_start|>" + name + "<|object_ref_end|>" : name;
}

}  // namespace

Status write_boxes(BoxUnits units, BoxForm form, std::span<const BoxPicture> pictures, Sample& sample,
                   std::vector<std::string>* written) {
  std::vector<std::size_t> image_of(sample.media.size());  // a media's number among the images
  for (std::size_t i = 0, n = 0; i < sample.media.size(); ++i) {
    image_of[i] = n;
    if (sample.media[i].kind == MediaKind::kImage) ++n;
  }
  Places places(units, form);
  for (Turn& turn : sample.turns) {
    std::vector<Part> parts;
    bool is_after_box = false;
    for (Part& part : turn.parts) {
      const bool is_box = part.kind == Part::Kind::kBox;
      if (is_box) {
        const Box& box = sample.boxes[part.media];
        if (box.name.empty()) {
          STOKER_TRY(part.text, places.text_of(box, pictures[image_of[box.media]]));
        } else {
          part.text = text_of_name(box.name, form);
        }
        part.kind = Part::Kind::kText;
        if (written != nullptr) written->push_back(part.text);
      }
      const bool is_text = part.kind == Part::Kind::kText;
      if ((is_box || (is_text && is_after_box)) && !parts.empty() && parts.back().kind == Part::Kind::kText) {
        parts.back().text += part.text;
      } else {
        parts.push_back(std::move(part));
      }
      is_after_box = is_box;
    }
    turn.parts = std::move(parts);
  }
  sample.boxes.clear();
  return {};
}

}  // namespace stoker::qwen_vl

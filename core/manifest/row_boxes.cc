#include "manifest/row_boxes.h"

#include <cmath>
#include <string>
#include <utility>

#include "manifest/row_keys.h"

namespace stoker {
namespace {

constexpr KeyNames<4> kObjectKeys = {"ref", "bbox", "bbox_type", "image_id"};
constexpr std::size_t kMaxNumbers = 64;  // of one place; a box has four
constexpr double kFarthest = 1e7;        // a coordinate beyond is a mistake, not a place

}  // namespace

Status RowBoxes::read_place(const JsonView& value, bool is_share) {
  if (!value.is_array()) return row_schema(value, "a box must be a list of numbers, not {}", value.type_name());
  Box box;
  box.is_share_of_sides = is_share;
  for (JsonView v = value.first(); v; v = v.next()) {
    if (!is_number(v)) return row_schema(v, "a coordinate must be a number, not {}", v.type_name());
    const double x = number_of(v);
    if (std::abs(x) > kFarthest || box.points.size() == kMaxNumbers) {
      return row_schema(v, "a box with the coordinate {}, number {}", shown(v.raw()), box.points.size() + 1);
    }
    box.points.push_back(x);
  }
  if (box.points.empty() || box.points.size() % 2 != 0) {
    return row_schema(value, "a box of {} numbers; it needs x and y in turn", box.points.size());
  }
  places_.boxes.push_back(std::move(box));
  return {};
}

Status RowBoxes::read_image_ids(const JsonView& ids) {
  if (!ids.is_array()) return row_schema(ids, "'image_id' must be a list, not {}", ids.type_name());
  std::size_t i = 0;
  for (JsonView v = ids.first(); v; v = v.next(), ++i) {
    const double id = v.type() == JsonType::kInt ? number_of(v) : -1;
    if (id < 0 || id > 1e6 || i >= places_.boxes.size()) {
      return row_schema(v, "'image_id' must hold numbers of pictures, from 0, one for each box at most");
    }
    places_.boxes[i].media = static_cast<std::uint32_t>(id);
  }
  return {};
}

Status RowBoxes::read(const JsonView& objects, std::uint32_t& n_replaced) {
  if (!objects) return {};
  if (!objects.is_object()) return row_schema(objects, "'objects' must be an object, not {}", objects.type_name());
  STOKER_TRY(const auto fields, Fields<kObjectKeys.size()>::of(objects, kObjectKeys));
  is_present_ = fields.has("ref") || fields.has("bbox");
  bool is_share = false;
  if (const JsonView type = fields["bbox_type"]) {
    is_share = type.is_string() && type.string_is("norm1");
    if (!is_share && !(type.is_string() && type.string_is("real"))) {
      return row_schema(type, "'bbox_type' is 'real' or 'norm1', not {}", shown(type.raw()));
    }
  }
  for (const std::string_view key : {"ref", "bbox"}) {
    if (fields.has(key) && !fields[key].is_array()) {
      return row_schema(fields[key], "'{}' must be a list, not {}", key, fields[key].type_name());
    }
  }
  if (const JsonView places = fields["bbox"]) {
    for (JsonView v = places.first(); v; v = v.next()) STOKER_CHECKED(read_place(v, is_share));
  }
  if (const JsonView names = fields["ref"]) {
    for (JsonView v = names.first(); v; v = v.next()) {
      if (!v.is_string()) return row_schema(v, "a 'ref' must be a string, not {}", v.type_name());
      Box box;
      box.name = v.string(&n_replaced);
      if (box.name.empty()) return row_schema(v, "an empty 'ref'");
      names_.boxes.push_back(std::move(box));
    }
  }
  return fields.has("image_id") ? read_image_ids(fields["image_id"]) : Status();
}

void RowBoxes::take(List& from, Turn& turn) {
  if (from.n_wanted < from.boxes.size()) {
    Part part;
    part.kind = Part::Kind::kBox;
    part.media = static_cast<std::uint32_t>(sample_.boxes.size());
    turn.parts.push_back(std::move(part));
    sample_.boxes.push_back(from.boxes[from.n_wanted]);
  }
  ++from.n_wanted;
}

Status RowBoxes::finish() {
  if (!is_present_) return {};
  if (places_.n_wanted != places_.boxes.size() || names_.n_wanted != names_.boxes.size()) {
    return Status(Reason::kMediaCount,
                  fmt::format("<bbox> marks {}, boxes {}; <ref-object> marks {}, refs {}", places_.n_wanted,
                              places_.boxes.size(), names_.n_wanted, names_.boxes.size()));
  }
  std::vector<std::uint32_t> images;  // by their number in the row
  for (std::size_t i = 0; i < sample_.media.size(); ++i) {
    if (sample_.media[i].kind == MediaKind::kImage) images.push_back(static_cast<std::uint32_t>(i));
  }
  for (Box& box : sample_.boxes) {
    if (!box.name.empty()) continue;
    if (box.media >= images.size()) {
      return Status(Reason::kRowSchema,
                    fmt::format("a box lies in picture {} (from 0), the row has {}", box.media, images.size()));
    }
    box.media = images[box.media];
  }
  return {};
}

}  // namespace stoker

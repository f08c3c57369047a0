#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "data/sample.h"
#include "manifest/json.h"

namespace stoker {

/// The row's `objects`: places and names that the marks `<bbox>` and `<ref-object>` take one after another.
///
///   {"ref": ["dog"], "bbox": [[x, y, x, y]], "bbox_type": "real" | "norm1", "image_id": [0]}
///
/// A place has one or more points; "real": in pixels of the upright picture, "norm1": shares of its sides. `image_id`
/// says which of the row's pictures (in reading order) each place lies in; without it the first.
class RowBoxes {
 public:
  explicit RowBoxes(Sample& sample) : sample_(sample) {}

  /// @return ROW_SCHEMA.
  Status read(const JsonView& objects, std::uint32_t& n_replaced);
  bool is_present() const { return is_present_; }
  /// What `<bbox>` and `<ref-object>` in the text become; beyond the end only counted.
  void take_place(Turn& turn) { take(places_, turn); }
  void take_name(Turn& turn) { take(names_, turn); }
  /// Binds places to pictures once all turns are read. @return ROW_SCHEMA for a picture that is not there; MEDIA_COUNT
  /// if marks and objects differ in number.
  Status finish();

 private:
  struct List {
    std::vector<Box> boxes;
    std::size_t n_wanted = 0;
  };
  Status read_place(const JsonView& value, bool is_share);
  Status read_image_ids(const JsonView& ids);
  void take(List& from, Turn& turn);

  Sample& sample_;
  bool is_present_ = false;
  List places_;
  List names_;
};

}  // namespace stoker

#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "data/sample.h"
#include "model/qwen_vl/family.h"
#include "model/qwen_vl/smart_resize.h"

namespace stoker::qwen_vl {

/// A picture that boxes lie in.
struct BoxPicture {
  SizePx upright;  ///< what the row's coordinates are of
  SizePx target;   ///< what the model sees; {} where it is not known: its boxes are written as zeros
};

/// Writes the boxes of a sample into its turns' texts; afterwards it has none. Neighbouring texts become one, so that a
/// template sees what it would see had the row been written so.
///
/// A coordinate x becomes round(x / side * range), halves to the even number, in IEEE doubles; side is the upright one
/// or, for shares, 1; range is 1000 or the side of what the model sees, as the family says. Names are inserted as they
/// are.
/// @param pictures  The sample's images in reading order; clips are not among them.
/// @param written   (boxes) what each became, for people; may be null.
/// @return BOX_PLACE for a coordinate that is outside 0 to range once rounded, and for a box of four numbers that are
///         not x1 < x2, y1 < y2.
/// Source: ms-swift 3.x, normalize_bbox in swift/template/base.py, replace_bbox and replace_ref in
/// swift/template/templates/qwen.py (QWENVL_BBOX_FORMAT: legacy is kMarks, new is kList).
Status write_boxes(BoxUnits units, BoxForm form, std::span<const BoxPicture> pictures, Sample& sample,
                   std::vector<std::string>* written = nullptr);

}  // namespace stoker::qwen_vl

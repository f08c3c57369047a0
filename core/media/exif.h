#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "media/notes.h"

namespace stoker {

/// The orientation in an EXIF block (a TIFF structure, with or without "Exif\0\0" headers in front, however many).
/// @return 1..8; 0 if the block has none, or one that a viewer ignores; nothing if it cannot be read: broken metadata
///         never fails a picture.
/// Source: Exif 2.32, section 4.6; TIFF 6.0, section 2. Which types count as a number: Pillow 13.
std::optional<int> exif_orientation(std::span<const std::byte> block);

/// The same in an XMP packet, which counts where EXIF says nothing. 0 if it says nothing.
int xmp_orientation(std::span<const std::byte> packet);

/// What a file's metadata say about orientation, gathered while its header is read.
class Orientation {
 public:
  /// A block of EXIF. Where a file has several, the first that is not empty counts.
  void add_exif(std::span<const std::byte> block, ImageNotes& notes);
  /// A block that replaces what was there before.
  void set_exif(std::span<const std::byte> block, ImageNotes& notes);
  /// Where a file has several packets, the last counts.
  void set_xmp(std::span<const std::byte> packet) { xmp_ = xmp_orientation(packet); }
  bool has_exif() const { return has_exif_; }
  /// 1..8; `otherwise` where nothing was said.
  int value(int otherwise = 1) const;

 private:
  std::optional<int> exif_;
  bool has_exif_ = false;
  int xmp_ = 0;
};

}  // namespace stoker

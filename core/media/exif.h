#pragma once

#include <cstddef>
#include <span>

namespace stoker {

/// The orientation in an EXIF block (a TIFF structure, with or without "Exif\0\0" headers in front, however many).
/// @return 1..8; 0 if the block has none or cannot be read: broken metadata never fails a picture.
/// Source: Exif 2.32, section 4.6; TIFF 6.0, section 2.
int exif_orientation(std::span<const std::byte> block);

/// The same in an XMP packet, which counts where EXIF says nothing.
int xmp_orientation(std::span<const std::byte> packet);

}  // namespace stoker

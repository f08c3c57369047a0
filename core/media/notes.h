#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace stoker {

/// What was odd about a picture that is used all the same. Each is a counter in a loader's report.
enum class ImageNote : std::uint8_t {
  kExifUnreadable,      ///< an EXIF block that is no TIFF structure: the picture counts as upright
  kJpegExtraneous,      ///< bytes between the scans' data and a marker, within the limit
  kAnimatedFirstFrame,  ///< an animation, of which the first frame is the picture
  kMorePictures,        ///< further pictures or pages follow (MPO, TIFF)
  kIccIgnored,          ///< a colour profile; the stored numbers are used
  kSideChunkDamaged,    ///< a wrong checksum outside of the pixels
  kBytesAfterEnd,       ///< data behind the picture's end
  kEndMissing,          ///< no end marker, accepted because of ImageOptions::is_end_optional
  kTruncated,           ///< rows are missing, accepted because of ImageOptions::is_truncated_used
};
inline constexpr std::size_t kImageNoteCount = 9;
inline constexpr std::array<std::string_view, kImageNoteCount> kImageNoteNames = {
    "exif_unreadable", "jpeg_extraneous", "animated_first_frame", "more_pictures", "icc_ignored",
    "png_side_chunk",  "bytes_after_end", "end_missing",          "truncated"};

/// A set of notes.
class ImageNotes {
 public:
  void add(ImageNote note) { bits_ |= 1U << static_cast<unsigned>(note); }
  void add(ImageNotes others) { bits_ |= others.bits_; }
  bool has(ImageNote note) const { return (bits_ >> static_cast<unsigned>(note) & 1U) != 0; }
  bool is_empty() const { return bits_ == 0; }
  bool operator==(const ImageNotes&) const = default;

 private:
  std::uint32_t bits_ = 0;
};

}  // namespace stoker

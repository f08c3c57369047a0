#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "base/result.h"
#include "data/rgb.h"
#include "media/notes.h"

namespace stoker {

enum class ImageFormat : std::uint8_t { kJpeg, kPng, kWebp, kGif, kBmp, kTiff, kHeif };
/// "jpeg" and so on.
std::string_view name_of(ImageFormat format);
inline constexpr std::size_t kImageFormatCount = 7;

/// What the bytes before the first pixel say about a picture.
struct ImageInfo {
  ImageFormat format = ImageFormat::kJpeg;
  int height_px = 0;  ///< as stored, before the EXIF orientation is applied
  int width_px = 0;
  int orientation = 1;      ///< EXIF 1..8; broken or absent counts as 1
  bool interlaced = false;  ///< interlaced PNG or GIF, or JPEG in several scans (progressive)
  /// The orientation is the format's own and counts whatever ImageOptions::is_exif_applied says: TIFF, as in Pillow.
  bool is_turned_always = false;
  ImageNotes notes;  ///< what is odd, as far as the header shows it
  /// Whole-picture buffers that decoding needs (several scans, interlacing, codecs that give no rows): lease them
  /// before `PatchDecoder::decode`. What a decoder took once it keeps for as long as it lives.
  std::size_t scratch_bytes = 0;

  /// The orientation that is applied; `is_exif_applied` as in ImageOptions.
  int applied_orientation(bool is_exif_applied) const { return is_exif_applied || is_turned_always ? orientation : 1; }
  /// Height and width as a viewer shows the picture.
  int upright_height_px(bool is_exif_applied = true) const {
    return applied_orientation(is_exif_applied) >= 5 ? width_px : height_px;
  }
  int upright_width_px(bool is_exif_applied = true) const {
    return applied_orientation(is_exif_applied) >= 5 ? height_px : width_px;
  }
};

/// Fences against hostile or absurd files, all checked before memory in proportion to the claim is taken.
struct ImageLimits {
  std::int64_t max_pixels = 178956970;
  int max_scans = 500;  ///< of a JPEG in several scans; each costs a pass over the whole picture
};

enum class AlphaRule : std::uint8_t {
  kWhite,      ///< blended on white: t = 255 * (255 - a) + c * a + 128, ((t >> 8) + t) >> 8 per channel
  kDrop,       ///< colour as stored, whatever lies under the transparent part (what Pillow's convert("RGB") does)
  kWhiteRgba,  ///< kWhite for what Pillow opens as RGBA, kDrop for grey, palette and single-colour transparency
};
enum class Grey16Rule : std::uint8_t {
  kScale,  ///< (v * 255 + 32767) / 65535, for every 16-bit sample, colour and alpha too
  kClip,   ///< min(v, 255) for grey without alpha, the high byte for all others (what Pillow's convert("RGB") does)
};

/// Whose bicubic resize (a = -0.5, antialiased) is followed bit for bit. They differ in arithmetic and in which axis
/// goes first, which shows because the picture between the two passes is rounded to 8 bits (except kFloat's).
enum class Resizer : std::uint8_t {
  kAten,      ///< torch's uint8 kernel (torchvision backend): int16 weights, horizontal pass first
  kPillow13,  ///< Pillow 13: 22-bit weights; vertical first when the height loses more than twice what the width loses
  kPillow12_2,  ///< Pillow 12.2 and 12.3: vertical first only when a picture more than 100 times as high as wide
                ///< shrinks
  kPillow,      ///< Pillow up to 12.1: horizontal first
  kFloat,       ///< torch's float kernel, clamped and rounded to 8 bits at the end (frames of a clip in qwen-vl-utils);
                ///< equal in at least 99.99 % of samples, because torch's own builds differ in how they round sums.
                ///< A file is held as a whole picture for it, which `ImageInfo::scratch_bytes` does not count
};

/// Decides pixels: part of a run's fingerprint.
struct ImageOptions {
  bool is_exif_applied = true;
  Resizer resizer = Resizer::kAten;
  AlphaRule alpha = AlphaRule::kWhite;
  Grey16Rule grey16 = Grey16Rule::kScale;
  bool is_end_optional = false;    ///< a JPEG that lacks nothing but its end marker is used
  bool is_truncated_used = false;  ///< a JPEG or PNG that ends early is used, missing parts as the codec leaves them
  ImageLimits limits;
};

/// What was found, or the bytes that are missing to find it.
struct Probe {
  std::optional<ImageInfo> info;
  /// [need_begin, need_end). Without `info`: fetch these, which follow the prefix, and probe again. With `info`: all is
  /// known but an orientation that stands behind the pixels (PNG, WebP); it may lie in this range, which goes to
  /// `finish_probe`. Empty otherwise.
  std::uint64_t need_begin = 0;
  std::uint64_t need_end = 0;

  bool is_complete() const { return info.has_value() && need_begin == need_end; }
};

/// Reads a picture's size and orientation from the beginning of its file. Content decides, never a name.
/// With the whole object in `prefix` the answer is final; the rest of it has a say in a PNG's and a WebP's orientation.
///
/// @param prefix       The first bytes of the object, as many as the caller has.
/// @param total_bytes  Size of the whole object, 0 if unknown.
/// @return kBadSample: IMG_EMPTY, IMG_NOT_AN_IMAGE, IMG_UNSUPPORTED (message shows the sniffed kind and the first 16
/// bytes),
///         IMG_TOO_LARGE, IMG_CORRUPT, or IMG_TRUNCATED if `prefix` is the whole object and the header is not complete.
/// Threads: any. Allocates nothing on success.
Result<Probe> probe(std::span<const std::byte> prefix, std::uint64_t total_bytes, const ImageLimits& limits);

/// Completes what `probe` said about a picture whose orientation may stand behind its pixels.
/// @param piece  The bytes [need_begin, need_end) of the object. Of a PNG that is the file's end only, so metadata far
/// in
///               front of it are missed; decoding, which sees the whole file, then finds another orientation.
ImageInfo finish_probe(const Probe& probed, std::span<const std::byte> piece);

/// The target of a decode: upright size in pixels, both sides multiples of patch * merge.
struct PatchGeometry {
  int height_px = 0;
  int width_px = 0;
  int patch = 16;
  int merge = 2;

  std::size_t n_patches() const {
    return static_cast<std::size_t>(height_px / patch) * static_cast<std::size_t>(width_px / patch);
  }
  std::size_t n_bytes() const {
    return n_patches() * 3 * static_cast<std::size_t>(patch) * static_cast<std::size_t>(patch);
  }
};

/// Turns encoded pictures into uint8 patches with the pixels of the reference: decode, orientation, bicubic resize as
/// `ImageOptions::resizer` says, patch order of the Qwen-VL processors. Rows flow through in
/// strips; what it needs is kept between calls, so that in steady state it neither allocates nor faults a page of its
/// own. Threads: one decoder per thread.
class PatchDecoder {
 public:
  PatchDecoder();
  ~PatchDecoder();
  PatchDecoder(PatchDecoder&&) noexcept;
  PatchDecoder& operator=(PatchDecoder&&) noexcept;

  /// @param file     The encoded object, whole; borrowed for the call.
  /// @param info     What `probe` said about these bytes, under the same limits.
  /// @param patches  Gets `to.n_bytes()` bytes, (n_patches, 3, patch, patch): patches of one merge group together,
  /// groups in
  ///                 raster order. Void unless the Status is ok.
  /// @return kBadSample: IMG_TRUNCATED, IMG_CORRUPT, IMG_TOO_MANY_SCANS, IMG_UNSUPPORTED; kInternal if `to` is no valid
  /// geometry.
  Status decode(std::span<const std::byte> file, const ImageInfo& info, const PatchGeometry& to,
                const ImageOptions& options, std::uint8_t* patches);

  /// What was odd about the last picture that was decoded.
  ImageNotes notes() const;

  /// The same for a picture in memory, (height, width, 3) uint8, upright.
  Status patches_of(const RgbImage& image, const PatchGeometry& to, Resizer resizer, std::uint8_t* patches);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// A whole picture, upright when `options.is_exif_applied`. For inspection and tests.
/// @param notes  Gets what was odd about it; may be null.
Result<RgbImage> decode_rgb(std::span<const std::byte> file, const ImageOptions& options, ImageNotes* notes = nullptr);

/// Bicubic resize of an upright picture. For frames, inspection and tests.
/// @return kInternal if a side is not positive.
Result<RgbImage> resize_rgb(const RgbImage& image, int height_px, int width_px, Resizer resizer);

}  // namespace stoker

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "base/result.h"

namespace stoker {

/// What planning needs of an image or a frame: enough to compute what it becomes, in patches and tokens, with any
/// settings of the processor.
struct ImageLengths {
  Hash128 key = {};            ///< of the resolved reference, see media_key
  std::int32_t height_px = 0;  ///< upright, of the file; 0: not known
  std::int32_t width_px = 0;
  std::int32_t prepared_height_px = 0;  ///< after the user's own code; without one the same
  std::int32_t prepared_width_px = 0;
  std::uint64_t object_bytes = 0;  ///< 0: not known
  std::uint64_t tag = 0;           ///< tag_hash of its ETag when its header was read; 0: not known
  bool is_size_from_row = false;
  bool is_inline = false;      ///< stands in the row, as a data: URL
  Reason bad = Reason::kNone;  ///< why it cannot be used, as far as its header tells

  bool operator==(const ImageLengths&) const = default;
};

/// What a row asks for itself of a picture's or a clip's size; 0: nothing. See MediaRef.
struct SizeWish {
  std::int64_t min_pixels = 0, max_pixels = 0, total_pixels = 0;
  std::int32_t resized_height_px = 0, resized_width_px = 0;

  bool operator==(const SizeWish&) const = default;
};

struct WishedImageLengths {
  ImageLengths image = {};
  SizeWish wish = {};

  bool operator==(const WishedImageLengths&) const = default;
};

/// A clip that is given as pictures; all have one size.
struct ClipLengths {
  std::vector<ImageLengths> frames = {};
  SizeWish wish = {};
  double frames_per_s = 0;         ///< as in MediaRef
  double source_frames_per_s = 0;  ///< the same

  bool operator==(const ClipLengths&) const = default;
};

/// What planning needs to know of one position of the order, without its text and its pixels: kept in the index and
/// sent from rank to rank. From these, the model and the settings follow its tokens, patches and costs.
struct SampleLengths {
  /// A longer message is cut.
  static constexpr std::size_t kMostMessageBytes = 4096;

  std::uint64_t order_index = 0;
  Reason bad = Reason::kNone;   ///< why it cannot be used; kNone for a usable sample
  std::string message = {};     ///< of `bad`
  std::string bad_media = {};   ///< the media that is to blame, for people; empty: the row
  std::int32_t bad_image = -1;  ///< which of its pictures that is: images, then frames; -1: the row

  // Of a usable sample:
  std::int64_t tokens = 0;  ///< placeholders expanded
  std::int64_t n_ids = 0;   ///< before that: a pad for each image, and of each clip one or one per temporal patch
  std::int64_t n_trained = 0;
  bool is_truncated = false;  ///< turns were cut from its end; everything here is of what is left

  std::vector<WishedImageLengths> images = {};  ///< in reading order, clips apart
  std::vector<ClipLengths> clips = {};

  bool is_usable() const { return bad == Reason::kNone; }
  bool operator==(const SampleLengths&) const = default;
};

/// What a media object is known by: of equal objects' addresses the same on every node, and nothing of a URL, which may
/// hold a signature, can be read from it.
/// @param store  What tells stores apart that know the same URL: the endpoint of S3; may be empty.
/// @param url    As resolve_media gives it; of an inline picture the whole data: URL.
Hash128 media_key(std::string_view store, std::string_view url);

/// What an ETag is compared by. A weak tag and a strong one of the same text stand for the same object (RFC 9110,
/// 8.8.3.2). 0 for an empty one.
std::uint64_t tag_hash(std::string_view etag);

/// Samples as bytes, with a checksum over all of them. About 40 bytes for a sample with one image.
std::string encode_lengths(std::span<const SampleLengths> samples);
/// Reads foreign bytes: takes memory in proportion to them, whatever they claim. Equal bytes come of encoding it again.
/// @return INTERNAL, with what is wrong, if they are not whole or not what this version writes.
Result<std::vector<SampleLengths>> decode_lengths(std::string_view bytes);

}  // namespace stoker

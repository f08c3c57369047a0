#pragma once

#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "base/result.h"
#include "data/lengths.h"
#include "index/record_store.h"

namespace stoker {

/// What the header of a media object said: whatever the settings, it says so again until the object changes.
struct MediaFacts {
  std::int32_t height_px = 0;  ///< as stored, before any orientation
  std::int32_t width_px = 0;
  std::uint8_t orientation = 1;   ///< EXIF 1..8
  bool is_turned_always = false;  ///< as ImageInfo
  std::uint64_t object_bytes = 0;
  std::uint64_t tag = 0;  ///< tag_hash
  Status bad = {};        ///< the proof that the object is of no use; then nothing else is known
};

/// What a row's text came to, and what it says of its media. Enough, with the facts of these, for a SampleLengths.
struct TextFacts {
  struct Picture {
    Hash128 key = {};
    bool is_inline = false;
    std::uint64_t object_bytes = 0;  ///< of an inline one

    bool operator==(const Picture&) const = default;
  };
  struct Image {
    Picture picture = {};
    std::int32_t row_height_px = 0;  ///< what the row says; 0: nothing
    std::int32_t row_width_px = 0;
    SizeWish wish = {};

    bool operator==(const Image&) const = default;
  };
  struct Clip {
    std::vector<Picture> frames = {};
    std::int32_t row_height_px = 0;
    std::int32_t row_width_px = 0;
    SizeWish wish = {};
    double frames_per_s = 0;
    double source_frames_per_s = 0;

    bool operator==(const Clip&) const = default;
  };
  /// A place where the conversation may end, as qwen_vl::SampleText::Cut.
  struct Cut {
    std::int32_t n_ids = 0, n_images = 0, n_clip_pads = 0, n_trained = 0;

    bool operator==(const Cut&) const = default;
  };

  std::int64_t n_ids = 0;  ///< of the whole row, uncut; pads not expanded
  std::int64_t n_trained = 0;
  std::uint64_t sizes = 0;     ///< of a text that depends on its pictures' sizes (boxes): a hash of them; else 0
  std::vector<Cut> cuts = {};  ///< of a row that was too long for a pack, where rows are cut
  std::vector<Image> images = {};
  std::vector<Clip> clips = {};

  bool operator==(const TextFacts&) const = default;
};

/// Facts as bytes. Reading takes foreign bytes: nothing where they are not what would be written.
std::string encode_media(const MediaFacts& facts);
std::optional<MediaFacts> decode_media(std::string_view bytes);
std::string encode_text(const TextFacts& facts);
std::optional<TextFacts> decode_text(std::string_view bytes);

/// What earlier runs, and other processes, learned of media and of rows, so that neither is looked at again: two layers
/// with keys of their own, because neither follows from the other's settings. Threads: any.
class LengthsIndex {
 public:
  /// @param folder       For all layers; empty: this process remembers for itself.
  /// @param media_rules  What a header is read by: limits, formats of this build.
  /// @param text_rules   What decides a row's text, beside the row.
  LengthsIndex(const std::string& folder, const Hash128& media_rules, const Hash128& text_rules,
               const std::stop_token& stop = {});

  /// @param key  media_key.
  std::optional<MediaFacts> media(const Hash128& key) const;
  /// Not kept where the message of `facts.bad` is longer than SampleLengths::kMostMessageBytes.
  void keep_media(const Hash128& key, const MediaFacts& facts);
  /// The object is another than it was: later runs look again. This one goes on with what it planned with.
  void forget_media(const Hash128& key);

  /// @param source  A number of the manifest and of what else tells its rows' texts apart.
  std::optional<TextFacts> text(std::uint64_t source, std::uint64_t row) const;
  /// Not kept where it is longer than a record may be.
  void keep_text(std::uint64_t source, std::uint64_t row, const TextFacts& facts);
  void forget_text(std::uint64_t source, std::uint64_t row);

  /// Writes what was kept since the last call. Blocks for the disk.
  void flush();
  const RecordStore& media_store() const { return media_; }
  const RecordStore& text_store() const { return text_; }

 private:
  RecordStore media_;
  RecordStore text_;
};

}  // namespace stoker

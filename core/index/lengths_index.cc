#include "index/lengths_index.h"

#include <fmt/format.h>

#include <limits>

#include "base/wire.h"
#include "data/lengths_wire.h"
#include "index/record_log.h"

namespace stoker {
namespace {

constexpr std::uint64_t kMostSide = std::numeric_limits<std::int32_t>::max();
constexpr std::uint64_t kMostIds = std::numeric_limits<std::int32_t>::max();

enum MediaFlag : std::uint8_t { kOrientation = 15, kIsTurned = 16, kHasTag = 32, kIsBad = 64, kMediaFlags = 127 };
enum TextFlag : std::uint8_t { kHasSizes = 1, kHasCuts = 2, kHasClips = 4, kTextFlags = 7 };
enum PictureFlag : std::uint8_t { kIsInline = 1, kHasRowSize = 2, kPictureFlags = 3 };

std::int32_t take_side(WireReader& from) {
  const auto side = static_cast<std::int32_t>(from.varint(kMostSide));
  if (side == 0) from.fail();
  return side;
}

void put_picture(WireWriter& to, const TextFacts::Picture& picture, std::uint8_t flags) {
  to.byte(flags | (picture.is_inline ? kIsInline : 0));
  to.fixed64(picture.key.high);
  to.fixed64(picture.key.low);
  if (picture.is_inline) to.varint(picture.object_bytes);
}

TextFacts::Picture take_picture(WireReader& from, std::uint8_t& flags) {
  flags = from.byte();
  if ((flags & ~kPictureFlags) != 0) from.fail();
  TextFacts::Picture picture;
  picture.is_inline = (flags & kIsInline) != 0;
  picture.key.high = from.fixed64();
  picture.key.low = from.fixed64();
  if (picture.is_inline) picture.object_bytes = from.varint();
  return picture;
}

bool has_row_size(std::int32_t height_px, std::int32_t width_px) { return height_px > 0 && width_px > 0; }

void put_row_size(WireWriter& to, std::int32_t height_px, std::int32_t width_px) {
  if (!has_row_size(height_px, width_px)) return;
  to.varint(static_cast<std::uint64_t>(height_px));
  to.varint(static_cast<std::uint64_t>(width_px));
}

}  // namespace

std::string encode_media(const MediaFacts& facts) {
  std::string out;
  WireWriter to(out);
  if (!facts.bad.ok()) {
    to.byte(kIsBad);
    put_reason(to, facts.bad.reason());
    to.text(facts.bad.message());
    return out;
  }
  to.byte(static_cast<std::uint8_t>(facts.orientation | (facts.is_turned_always ? kIsTurned : 0) |
                                    (facts.tag != 0 ? kHasTag : 0)));
  to.varint(static_cast<std::uint64_t>(facts.height_px));
  to.varint(static_cast<std::uint64_t>(facts.width_px));
  to.varint(facts.object_bytes);
  if (facts.tag != 0) to.fixed64(facts.tag);
  return out;
}

std::optional<MediaFacts> decode_media(std::string_view bytes) {
  WireReader from(bytes);
  MediaFacts facts;
  const std::uint8_t flags = from.byte();
  if (flags == kIsBad) {
    const Reason reason = take_reason(from);
    facts.bad = Status(reason, std::string(from.text(SampleLengths::kMostMessageBytes)));
    if (facts.bad.code() != Code::kBadSample) return std::nullopt;
  } else {
    facts.orientation = flags & kOrientation;
    if ((flags & ~kMediaFlags) != 0 || (flags & kIsBad) != 0 || facts.orientation < 1 || facts.orientation > 8) {
      return std::nullopt;
    }
    facts.is_turned_always = (flags & kIsTurned) != 0;
    facts.height_px = take_side(from);
    facts.width_px = take_side(from);
    facts.object_bytes = from.varint();
    if ((flags & kHasTag) != 0 && (facts.tag = from.fixed64()) == 0) return std::nullopt;
  }
  return from.is_at_end() ? std::optional(std::move(facts)) : std::nullopt;
}

std::string encode_text(const TextFacts& facts) {
  std::string out;
  WireWriter to(out);
  to.byte(static_cast<std::uint8_t>((facts.sizes != 0 ? kHasSizes : 0) | (facts.cuts.empty() ? 0 : kHasCuts) |
                                    (facts.clips.empty() ? 0 : kHasClips)));
  to.varint(static_cast<std::uint64_t>(facts.n_ids));
  to.varint(static_cast<std::uint64_t>(facts.n_trained));
  if (facts.sizes != 0) to.fixed64(facts.sizes);
  if (!facts.cuts.empty()) {
    to.varint(facts.cuts.size());
    for (const TextFacts::Cut& cut : facts.cuts) {
      for (const std::int32_t n : {cut.n_ids, cut.n_images, cut.n_clip_pads, cut.n_trained}) {
        to.varint(static_cast<std::uint64_t>(n));
      }
    }
  }
  to.varint(facts.images.size());
  for (const TextFacts::Image& image : facts.images) {
    put_picture(to, image.picture, has_row_size(image.row_height_px, image.row_width_px) ? kHasRowSize : 0);
    put_row_size(to, image.row_height_px, image.row_width_px);
    put_wish(to, image.wish);
  }
  if (!facts.clips.empty()) to.varint(facts.clips.size());
  for (const TextFacts::Clip& clip : facts.clips) {
    to.byte(has_row_size(clip.row_height_px, clip.row_width_px) ? kHasRowSize : 0);
    put_row_size(to, clip.row_height_px, clip.row_width_px);
    put_wish(to, clip.wish);
    put_rate(to, clip.frames_per_s);
    put_rate(to, clip.source_frames_per_s);
    to.varint(clip.frames.size());
    for (const TextFacts::Picture& frame : clip.frames) put_picture(to, frame, 0);
  }
  return out;
}

std::optional<TextFacts> decode_text(std::string_view bytes) {
  WireReader from(bytes);
  TextFacts facts;
  const std::uint8_t flags = from.byte();
  if ((flags & ~kTextFlags) != 0) from.fail();
  facts.n_ids = static_cast<std::int64_t>(from.varint(kMostIds));
  facts.n_trained = static_cast<std::int64_t>(from.varint(static_cast<std::uint64_t>(facts.n_ids)));
  if ((flags & kHasSizes) != 0 && (facts.sizes = from.fixed64()) == 0) from.fail();
  // Numbers are claims: each thing takes some bytes, and is made only as it is read.
  const auto take_number = [&](bool is_there) {
    const std::uint64_t n = is_there ? from.varint(from.n_left()) : 0;
    if (is_there && n == 0) from.fail();
    return n;
  };
  for (std::uint64_t n = take_number((flags & kHasCuts) != 0); n > 0 && from.ok(); --n) {
    TextFacts::Cut& cut = facts.cuts.emplace_back();
    for (std::int32_t* to : {&cut.n_ids, &cut.n_images, &cut.n_clip_pads, &cut.n_trained}) {
      *to = static_cast<std::int32_t>(from.varint(kMostIds));
    }
  }
  for (std::uint64_t n = from.varint(from.n_left()); n > 0 && from.ok(); --n) {
    TextFacts::Image& image = facts.images.emplace_back();
    std::uint8_t image_flags = 0;
    image.picture = take_picture(from, image_flags);
    if ((image_flags & kHasRowSize) != 0) {
      image.row_height_px = take_side(from);
      image.row_width_px = take_side(from);
    }
    image.wish = take_wish(from);
  }
  for (std::uint64_t n = take_number((flags & kHasClips) != 0); n > 0 && from.ok(); --n) {
    TextFacts::Clip& clip = facts.clips.emplace_back();
    const std::uint8_t clip_flags = from.byte();
    if ((clip_flags & ~kHasRowSize) != 0) from.fail();
    if ((clip_flags & kHasRowSize) != 0) {
      clip.row_height_px = take_side(from);
      clip.row_width_px = take_side(from);
    }
    clip.wish = take_wish(from);
    clip.frames_per_s = take_rate(from);
    clip.source_frames_per_s = take_rate(from);
    for (std::uint64_t f = take_number(true); f > 0 && from.ok(); --f) {
      std::uint8_t frame_flags = 0;
      clip.frames.push_back(take_picture(from, frame_flags));
      if ((frame_flags & kHasRowSize) != 0) from.fail();
    }
  }
  for (const TextFacts::Cut& cut : facts.cuts) {
    if (cut.n_ids > facts.n_ids || cut.n_trained > cut.n_ids ||
        static_cast<std::size_t>(cut.n_images) > facts.images.size()) {
      return std::nullopt;
    }
  }
  return from.is_at_end() ? std::optional(std::move(facts)) : std::nullopt;
}

namespace {

std::string layer_folder(const std::string& folder, std::string_view layer, const Hash128& rules) {
  return folder.empty() ? "" : fmt::format("{}/{}-{:016x}", folder, layer, rules.high);
}

}  // namespace

LengthsIndex::LengthsIndex(const std::string& folder, const Hash128& media_rules, const Hash128& text_rules,
                           const std::stop_token& stop)
    : media_(layer_folder(folder, "media", media_rules), media_rules, stop),
      text_(layer_folder(folder, "text", text_rules), text_rules, stop) {}

std::optional<MediaFacts> LengthsIndex::media(const Hash128& key) const {
  const auto bytes = media_.find(key);
  return bytes ? decode_media(*bytes) : std::nullopt;
}

void LengthsIndex::keep_media(const Hash128& key, const MediaFacts& facts) {
  if (facts.bad.message().size() <= SampleLengths::kMostMessageBytes) media_.put(key, encode_media(facts));
}

void LengthsIndex::forget_media(const Hash128& key) { media_.forget(key); }

std::optional<TextFacts> LengthsIndex::text(std::uint64_t source, std::uint64_t row) const {
  const auto bytes = text_.find({source, row});
  return bytes ? decode_text(*bytes) : std::nullopt;
}

void LengthsIndex::keep_text(std::uint64_t source, std::uint64_t row, const TextFacts& facts) {
  std::string bytes = encode_text(facts);
  if (bytes.size() <= RecordLog::kMostValueBytes) text_.put({source, row}, std::move(bytes));
}

void LengthsIndex::forget_text(std::uint64_t source, std::uint64_t row) { text_.forget({source, row}); }

void LengthsIndex::flush() {
  media_.flush();
  text_.flush();
}

}  // namespace stoker

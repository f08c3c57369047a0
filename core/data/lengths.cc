#include "data/lengths.h"

#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "base/wire.h"
#include "data/lengths_wire.h"

namespace stoker {
namespace {

constexpr std::string_view kMagic = "STKLEN1\n";
constexpr std::size_t kChecksumBytes = 8;
constexpr std::uint64_t kMostPixelsASide = std::numeric_limits<std::int32_t>::max();
constexpr std::uint64_t kMostTokens = std::uint64_t{1} << 40;
constexpr std::uint64_t kMostPixels = std::uint64_t{1} << 62;
// The fewest bytes that one of them takes: what bounds a claimed number.
constexpr std::uint64_t kLeastImage = 1 + 16;
constexpr std::uint64_t kLeastClip = 1 + 1 + 8 + 8;
constexpr std::uint64_t kLeastSample = 2 + 3 + 1 + 1;

enum ImageFlag : std::uint8_t {
  kIsFromRow = 1,
  kIsInline = 2,
  kHasSize = 4,
  kHasPrepared = 8,  // another size than the file's
  kHasTag = 16,
  kIsBad = 32,
  kHasBytes = 64,
  kImageFlags = 127,
};
enum SampleFlag : std::uint8_t { kIsBadSample = 1, kIsTruncated = 2, kSampleFlags = 3 };

void put_sides(WireWriter& to, std::int32_t height_px, std::int32_t width_px) {
  to.varint(static_cast<std::uint64_t>(height_px));
  to.varint(static_cast<std::uint64_t>(width_px));
}

void take_sides(WireReader& from, std::int32_t& height_px, std::int32_t& width_px) {
  height_px = static_cast<std::int32_t>(from.varint(kMostPixelsASide));
  width_px = static_cast<std::int32_t>(from.varint(kMostPixelsASide));
  if (height_px == 0 || width_px == 0) from.fail();
}

bool has_size(const ImageLengths& image) { return image.height_px > 0 && image.width_px > 0; }
bool has_prepared(const ImageLengths& image) {
  return image.prepared_height_px != image.height_px || image.prepared_width_px != image.width_px;
}

void put_image(WireWriter& to, const ImageLengths& image) {
  std::uint8_t flags = 0;
  if (image.is_size_from_row) flags |= kIsFromRow;
  if (image.is_inline) flags |= kIsInline;
  if (has_size(image)) flags |= kHasSize;
  if (has_size(image) && has_prepared(image)) flags |= kHasPrepared;
  if (image.tag != 0) flags |= kHasTag;
  if (image.bad != Reason::kNone) flags |= kIsBad;
  if (image.object_bytes != 0) flags |= kHasBytes;
  to.byte(flags);
  to.fixed64(image.key.high);
  to.fixed64(image.key.low);
  if ((flags & kHasSize) != 0) put_sides(to, image.height_px, image.width_px);
  if ((flags & kHasPrepared) != 0) put_sides(to, image.prepared_height_px, image.prepared_width_px);
  if ((flags & kHasBytes) != 0) to.varint(image.object_bytes);
  if ((flags & kHasTag) != 0) to.fixed64(image.tag);
  if ((flags & kIsBad) != 0) put_reason(to, image.bad);
}

ImageLengths take_image(WireReader& from) {
  ImageLengths image;
  const std::uint8_t flags = from.byte();
  if ((flags & ~kImageFlags) != 0 || (flags & (kHasSize | kHasPrepared)) == kHasPrepared) from.fail();
  image.is_size_from_row = (flags & kIsFromRow) != 0;
  image.is_inline = (flags & kIsInline) != 0;
  image.key.high = from.fixed64();
  image.key.low = from.fixed64();
  if ((flags & kHasSize) != 0) take_sides(from, image.height_px, image.width_px);
  image.prepared_height_px = image.height_px;
  image.prepared_width_px = image.width_px;
  if ((flags & kHasPrepared) != 0) {
    take_sides(from, image.prepared_height_px, image.prepared_width_px);
    if (!has_prepared(image)) from.fail();
  }
  if ((flags & kHasBytes) != 0 && (image.object_bytes = from.varint()) == 0) from.fail();
  if ((flags & kHasTag) != 0 && (image.tag = from.fixed64()) == 0) from.fail();
  if ((flags & kIsBad) != 0) image.bad = take_reason(from);
  return image;
}

void put_sample(WireWriter& to, const SampleLengths& sample) {
  const bool is_usable = sample.is_usable();
  to.varint(sample.order_index);
  to.byte(static_cast<std::uint8_t>((is_usable ? 0 : kIsBadSample) | (sample.is_truncated ? kIsTruncated : 0)));
  if (!is_usable) {
    put_reason(to, sample.bad);
    to.text(std::string_view(sample.message).substr(0, SampleLengths::kMostMessageBytes));
    to.text(std::string_view(sample.bad_media).substr(0, SampleLengths::kMostMessageBytes));
    to.varint(static_cast<std::uint64_t>(sample.bad_image + 1));
  } else {
    for (const std::int64_t n : {sample.tokens, sample.n_ids, sample.n_trained}) {
      to.varint(static_cast<std::uint64_t>(n));
    }
  }
  to.varint(sample.images.size());
  for (const WishedImageLengths& image : sample.images) {
    put_image(to, image.image);
    put_wish(to, image.wish);
  }
  to.varint(sample.clips.size());
  for (const ClipLengths& clip : sample.clips) {
    put_wish(to, clip.wish);
    put_rate(to, clip.frames_per_s);
    put_rate(to, clip.source_frames_per_s);
    to.varint(clip.frames.size());
    for (const ImageLengths& frame : clip.frames) put_image(to, frame);
  }
}

SampleLengths take_sample(WireReader& from) {
  SampleLengths sample;
  sample.order_index = from.varint();
  const std::uint8_t flags = from.byte();
  if ((flags & ~kSampleFlags) != 0) from.fail();
  sample.is_truncated = (flags & kIsTruncated) != 0;
  if ((flags & kIsBadSample) != 0) {
    sample.bad = take_reason(from);
    sample.message = from.text(SampleLengths::kMostMessageBytes);
    sample.bad_media = from.text(SampleLengths::kMostMessageBytes);
    sample.bad_image = static_cast<std::int32_t>(from.varint(kMostPixelsASide)) - 1;
  } else {
    for (std::int64_t* n : {&sample.tokens, &sample.n_ids, &sample.n_trained}) {
      *n = static_cast<std::int64_t>(from.varint(kMostTokens));
    }
    if (sample.n_trained > sample.n_ids) from.fail();
  }
  // Numbers are claims: each thing takes some bytes, and is made only as it is read.
  for (std::uint64_t n = from.varint(from.n_left() / kLeastImage); n > 0 && from.ok(); --n) {
    WishedImageLengths& image = sample.images.emplace_back();
    image.image = take_image(from);
    image.wish = take_wish(from);
  }
  for (std::uint64_t n = from.varint(from.n_left() / kLeastClip); n > 0 && from.ok(); --n) {
    ClipLengths& clip = sample.clips.emplace_back();
    clip.wish = take_wish(from);
    clip.frames_per_s = take_rate(from);
    clip.source_frames_per_s = take_rate(from);
    const std::uint64_t n_frames = from.varint(from.n_left() / kLeastImage);
    if (n_frames == 0) from.fail();
    for (std::uint64_t f = 0; f < n_frames && from.ok(); ++f) clip.frames.push_back(take_image(from));
  }
  return sample;
}

}  // namespace

void put_reason(WireWriter& to, Reason reason) { to.text(name_of(reason)); }

Reason take_reason(WireReader& from) {
  const auto reason = reason_named(from.text(64));
  if (!reason || *reason == Reason::kNone) from.fail();
  return reason.value_or(Reason::kInternal);
}

void put_wish(WireWriter& to, const SizeWish& wish) {
  to.byte(wish == SizeWish{} ? 0 : 1);
  if (wish == SizeWish{}) return;
  for (const std::int64_t n : {wish.min_pixels, wish.max_pixels, wish.total_pixels}) {
    to.varint(static_cast<std::uint64_t>(n));
  }
  to.varint(static_cast<std::uint64_t>(wish.resized_height_px));
  to.varint(static_cast<std::uint64_t>(wish.resized_width_px));
}

SizeWish take_wish(WireReader& from) {
  SizeWish wish;
  const std::uint8_t is_there = from.byte();
  if (is_there > 1) from.fail();
  if (is_there != 1) return wish;
  for (std::int64_t* n : {&wish.min_pixels, &wish.max_pixels, &wish.total_pixels}) {
    *n = static_cast<std::int64_t>(from.varint(kMostPixels));
  }
  wish.resized_height_px = static_cast<std::int32_t>(from.varint(kMostPixelsASide));
  wish.resized_width_px = static_cast<std::int32_t>(from.varint(kMostPixelsASide));
  if (wish == SizeWish{}) from.fail();
  return wish;
}

void put_rate(WireWriter& to, double rate) { to.fixed64(std::bit_cast<std::uint64_t>(rate)); }

double take_rate(WireReader& from) {
  const double rate = std::bit_cast<double>(from.fixed64());
  if (!std::isfinite(rate) || rate < 0 || std::signbit(rate)) from.fail();
  return from.ok() ? rate : 0;
}

Hash128 media_key(std::string_view store, std::string_view url) {
  if (!url.starts_with("s3://") || store.empty()) return hash128(url);
  std::string named(store);
  named += '\n';
  named += url;
  return hash128(named);
}

std::uint64_t tag_hash(std::string_view etag) {
  if (etag.starts_with("W/")) etag.remove_prefix(2);
  if (etag.empty()) return 0;
  const std::uint64_t hash = hash64(etag);
  return hash == 0 ? 1 : hash;
}

std::string encode_lengths(std::span<const SampleLengths> samples) {
  std::string bytes(kMagic);
  WireWriter to(bytes);
  to.varint(samples.size());
  for (const SampleLengths& sample : samples) put_sample(to, sample);
  to.fixed64(hash64(bytes));
  return bytes;
}

Result<std::vector<SampleLengths>> decode_lengths(std::string_view bytes) {
  const auto refused = [](const char* why) { return Status(Reason::kInternal, why); };
  if (!bytes.starts_with(kMagic)) return refused("these bytes are no lengths of samples, or another version's");
  if (bytes.size() < kMagic.size() + kChecksumBytes) return refused("lengths of samples that end early");
  const std::string_view all = bytes.substr(0, bytes.size() - kChecksumBytes);
  if (WireReader(bytes.substr(all.size())).fixed64() != hash64(all)) {
    return refused("lengths of samples whose checksum is wrong");
  }
  WireReader from(all.substr(kMagic.size()));
  std::vector<SampleLengths> samples;
  for (std::uint64_t n = from.varint(from.n_left() / kLeastSample); n > 0 && from.ok(); --n) {
    samples.push_back(take_sample(from));
  }
  if (!from.is_at_end()) return refused("lengths of samples with values out of range");
  return samples;
}

}  // namespace stoker
